"""The life of a request at the edge: retries, cancels, deadlines, slow and vanished readers; nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    Cluster,
    Tenant,
    eventually,
    eventually_async,
    running_cluster,
    tokens_request,
)

PROMPT = list(range(100, 180))
LONG = {"max_tokens": 3_000}
Code = grpc.StatusCode


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, ({"digest_step_s": 0.005},)) as made:
        yield made


def tokens_of(events: list[pb.GenerateStreamResponse]) -> bytes:
    return b"".join(event.delta.token_ids.packed for event in events if event.HasField("delta"))


async def rest_of(call: Any) -> list[pb.GenerateStreamResponse]:
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


async def test_a_retry_attaches_to_the_running_request(cluster: Cluster) -> None:
    request = tokens_request(PROMPT, request_id="r", max_tokens=60, temperature=1.0)
    stream = cluster.acme.stream(request)
    await stream.read()
    retry = asyncio.create_task(cluster.acme.generate(request))
    events = await rest_of(stream)
    answer = await retry
    assert answer.request_id == "r"
    assert answer.completions[0].token_ids.packed == tokens_of(events)
    assert cluster.workers[0].thread.num_open == 0


async def test_a_retry_after_the_end_is_given_the_result(cluster: Cluster) -> None:
    request = tokens_request(PROMPT, request_id="r", temperature=1.0)
    answer = await cluster.acme.generate(request)
    assert await cluster.acme.generate(request) == answer
    streamed = await rest_of(cluster.acme.stream(request))
    assert tokens_of(streamed) == answer.completions[0].token_ids.packed
    assert streamed[0].started.seed == answer.seed


async def test_an_id_of_another_body_is_taken_and_of_another_tenant_absent(cluster: Cluster) -> None:
    await cluster.acme.generate(tokens_request(PROMPT, request_id="r"))
    assert await code_of(cluster.acme.generate(tokens_request(PROMPT[1:], request_id="r"))) is Code.ALREADY_EXISTS
    theirs = await cluster.globex.generate(tokens_request(PROMPT[1:], request_id="r"))
    assert theirs.usage.completion_tokens == 8


async def test_cancel_ends_with_what_was_made(cluster: Cluster) -> None:
    stream = cluster.acme.stream(tokens_request(PROMPT, request_id="r", n=2, **LONG))
    first = [await stream.read() for _ in range(6)]
    assert not await cluster.globex.cancel("r")
    assert not await cluster.acme.cancel("another")
    assert await cluster.acme.cancel("r")
    events = first + await rest_of(stream)
    ends = [sample.finish_reason for sample in events[-1].finished.samples]
    assert ends == [pb.FINISH_REASON_CANCELLED] * 2
    assert events[-1].finished.usage.completion_tokens == len(tokens_of(events)) // 4 > 0
    assert not await cluster.acme.cancel("r")
    await cluster.nothing_left()
    assert (await cluster.record(cluster.acme, "r")).status == "CANCELLED"


async def test_a_reader_that_leaves_ends_its_request(cluster: Cluster) -> None:
    stream = cluster.acme.stream(tokens_request(PROMPT, **LONG))
    await stream.read()
    stream.cancel()
    await cluster.nothing_left()


async def test_a_reader_that_leaves_may_come_back_for_its_id(cluster: Cluster) -> None:
    request = tokens_request(PROMPT, request_id="r", max_tokens=150, temperature=1.0)
    stream = cluster.acme.stream(request)
    first = [await stream.read() for _ in range(3)]
    stream.cancel()
    events = await rest_of(cluster.acme.stream(request))
    assert tokens_of(events).startswith(tokens_of(first))
    assert events[0].started.seed == first[0].started.seed
    assert len(tokens_of(events)) == 150 * 4


async def test_the_deadline_travels_to_the_worker(cluster: Cluster) -> None:
    assert await code_of(cluster.acme.generate(tokens_request(PROMPT, **LONG), timeout_s=0.3)) is Code.DEADLINE_EXCEEDED
    await cluster.nothing_left()
    named = tokens_request(PROMPT, request_id="r", **LONG)
    assert await code_of(cluster.acme.generate(named, timeout_s=0.3)) is Code.DEADLINE_EXCEEDED
    await cluster.nothing_left()


async def test_a_deadline_that_cannot_be_met_is_told_early(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, ({"digest_token_s": 0.005},)) as cluster:
        await cluster.acme.generate(tokens_request(PROMPT, max_tokens=1))
        await eventually_async(lambda: is_measured(cluster))
        hopeless = cluster.acme.generate(tokens_request(range(200, 5_000), max_tokens=1), timeout_s=8.0)
        with pytest.raises(grpc.aio.AioRpcError, match="the deadline cannot be met") as error:
            await hopeless
        assert error.value.code() is Code.DEADLINE_EXCEEDED
        assert (await cluster.acme.generate(tokens_request(PROMPT), timeout_s=8.0)).usage.completion_tokens == 8


async def is_measured(cluster: Cluster) -> bool:
    status = await cluster.cluster_admin.GetStatus(admin_pb2.GetStatusRequest(), metadata=ADMIN_METADATA, timeout=5.0)
    return bool(status.workers[0].prefill_tokens_per_s)


async def test_a_storm_of_cancels_leaves_nothing(cluster: Cluster) -> None:
    async def give_up(at: int) -> None:
        stream = cluster.acme.stream(tokens_request([*PROMPT, at], n=1 + at % 3, **LONG))
        await asyncio.sleep(0.004 * at)
        stream.cancel()

    await asyncio.gather(*(give_up(at) for at in range(30)))
    await cluster.nothing_left()
    assert (await cluster.acme.generate(tokens_request(PROMPT))).usage.completion_tokens == 8


async def test_a_reader_that_does_not_read_harms_nobody(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, write_s=0.3) as cluster:
        options = (("grpc.http2.lookahead_bytes", 1_024), ("grpc.http2.bdp_probe", 0))
        async with grpc.aio.insecure_channel(cluster.router.address, options=options) as channel:
            reader = Tenant("acme", cluster.acme.metadata[0][1].removeprefix("Bearer "), channel)
            stuck = reader.stream(tokens_request(PROMPT, n=16, max_tokens=450))
            await stuck.read()
            assert (await cluster.globex.generate(tokens_request(PROMPT))).usage.completion_tokens == 8
            await eventually(lambda: cluster.router.table.num_running == 0)
            await asyncio.sleep(1.0)
            assert await code_of(rest_of(stuck)) is Code.DEADLINE_EXCEEDED
