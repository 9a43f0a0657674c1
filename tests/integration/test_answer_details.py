"""What answers say of themselves: tokens written, and to the operator why they came from where they came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from stemcache.v1 import inference_pb2 as pb

from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_TOKEN, Cluster, Tenant, running_cluster, tokens_request

PROMPT = list(range(100, 180))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(server_named(request, "valkey").urls, tmp_path, ({}, {})) as made:
        yield made


async def generate(tenant: Tenant, request: pb.GenerateRequest, *metadata: tuple[str, str]) -> pb.GenerateResponse:
    answer: pb.GenerateResponse = await tenant.stub.Generate(
        request, timeout=30.0, metadata=(*tenant.metadata, *metadata)
    )
    return answer


async def test_what_is_new_in_full_blocks_was_written(cluster: Cluster) -> None:
    first = await cluster.acme.generate(tokens_request(PROMPT, max_tokens=20))
    assert first.usage.written_tokens == 96  # of the 99 whose keys and values are there
    again = await cluster.acme.generate(tokens_request(PROMPT, max_tokens=20))
    assert again.usage.cached_tokens > 0
    longer = await cluster.acme.generate(tokens_request([*PROMPT, *range(500, 516)], max_tokens=1))
    assert longer.usage.written_tokens == 16
    for policy in ({"no_store": True}, {"mode": pb.CachePolicy.MODE_BYPASS}):
        nothing = await cluster.acme.generate(tokens_request(range(2_000, 2_080), max_tokens=20, **policy))
        assert nothing.usage.written_tokens == 0


async def test_only_with_the_operators_token_does_an_answer_tell_its_route(cluster: Cluster) -> None:
    token = ("stemcache-operator-token", ADMIN_TOKEN)
    plain = await generate(cluster.acme, tokens_request(PROMPT))
    assert not plain.route.HasField("decision")
    shown = await generate(cluster.acme, tokens_request(PROMPT), token)
    decision = shown.route.decision
    assert {each.worker_id for each in decision.candidates} == {"worker-0", "worker-1"}
    assert decision.candidates[0].worker_id == shown.route.worker_id
    assert decision.uncached_tokens == shown.usage.computed_tokens
    assert decision.reason
    assert decision.reuse


async def test_a_stream_tells_it_with_its_start(cluster: Cluster) -> None:
    metadata = (*cluster.acme.metadata, ("stemcache-operator-token", ADMIN_TOKEN))
    message = pb.GenerateStreamRequest(request=tokens_request(PROMPT))
    call: Any = cluster.acme.stub.GenerateStream(message, timeout=30.0, metadata=metadata)
    events = [event async for event in call]
    assert events[0].started.route.decision.candidates
    assert events[-1].finished.usage.written_tokens == 80
    plain = [event async for event in cluster.acme.stream(tokens_request(PROMPT))]
    assert not plain[0].started.route.HasField("decision")


async def test_another_token_is_refused_and_the_operators_alone_is_no_tenants_key(cluster: Cluster) -> None:
    for value in ("", "no", cluster.acme.key, ADMIN_TOKEN[:-1]):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await generate(cluster.acme, tokens_request(PROMPT), ("stemcache-operator-token", value))
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.acme.stub.Generate(
            tokens_request(PROMPT), timeout=30.0, metadata=(("stemcache-operator-token", ADMIN_TOKEN),)
        )
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
