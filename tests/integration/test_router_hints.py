"""Hints of a request through a real router and worker: what they keep, what they let go, and that no answer changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from tests.support.redis_servers import server_named
from tests.support.router_host import Cluster, Tenant, eventually, running_cluster, tokens_request

PROMPT = tuple(range(1, 101))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(server_named(request, "valkey").urls, tmp_path) as made:
        yield made


async def cached(tenant: Tenant, prompt: tuple[int, ...] = PROMPT, **fields: object) -> int:
    return (await tenant.generate(tokens_request(prompt, **fields))).usage.cached_tokens


async def test_no_store_reads_what_is_there_and_leaves_nothing(cluster: Cluster) -> None:
    assert await cached(cluster.acme, no_store=True) == 0
    assert await cached(cluster.acme, no_store=True) == 0, "the first request left something behind"
    assert await cached(cluster.acme) == 0
    assert await cached(cluster.acme, no_store=True) > 0, "the second request did not read"


async def test_hints_change_no_answer(cluster: Cluster) -> None:
    plain = await cluster.acme.generate(tokens_request(PROMPT))
    hints = {"session_id": "s", "session_end": True, "no_store": True, "ttl": Duration(seconds=60)}
    hinted = await cluster.acme.generate(tokens_request(PROMPT, **hints))
    assert hinted.completions == plain.completions


async def test_after_its_time_to_live_an_idle_worker_has_let_go_of_a_prefix(cluster: Cluster) -> None:
    assert await cached(cluster.acme, ttl=Duration(seconds=1)) == 0
    assert await cached(cluster.acme, ttl=Duration(seconds=1)) > 0
    assert await cached(cluster.globex) == 0
    (worker,) = cluster.workers
    await eventually(lambda: worker.thread.load.used_blocks == len(PROMPT) // 16)
    assert await cached(cluster.acme, no_store=True) == 0, "the time is over"
    assert await cached(cluster.globex, no_store=True) > 0, "the other tenant gave no time"


async def test_a_repeated_id_with_other_hints_is_another_request(cluster: Cluster) -> None:
    await cluster.acme.generate(tokens_request(PROMPT, request_id="r", session_id="s"))
    again = await cluster.acme.generate(tokens_request(PROMPT, request_id="r", session_id="s"))
    assert again.request_id == "r"
    for other in ({"session_id": "t"}, {"session_end": True}, {"no_store": True}, {"ttl": Duration(seconds=9)}):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await cluster.acme.generate(tokens_request(PROMPT, request_id="r", **({"session_id": "s"} | other)))
        assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_a_bad_hint_is_refused_by_the_name_of_its_field(cluster: Cluster) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.acme.generate(tokens_request(PROMPT, ttl=Duration(seconds=31 * 86_400)))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "30 days" in (error.value.details() or "")
