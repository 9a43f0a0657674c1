"""Redis away at the start, later, and back empty: nothing is served that was not confirmed, and nothing fails after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.clock import SystemClock
from services.cluster.valkey import EmbeddedValkey
from services.router.readiness import SERVICE
from services.tenants.directory import CONTROL_AGE_BOUND_S
from tests.support.outages import SkewedClock, end
from tests.support.redis_servers import RedisServer
from tests.support.router_host import (
    ADMIN_METADATA,
    Cluster,
    Tenant,
    detail_of,
    eventually_async,
    new_tenant,
    router_settings,
    running,
    running_cluster,
    running_workers_of,
    tokens_request,
)

PROMPT = list(range(100, 180))
Code = grpc.StatusCode


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A server that the test may end."""
    with EmbeddedValkey.start(tmp_path / "v") as server:
        yield server


@pytest.fixture
def clock() -> SkewedClock:
    return SkewedClock()


@pytest.fixture
async def cluster(own_valkey: EmbeddedValkey, tmp_path: Path, clock: SkewedClock) -> AsyncIterator[Cluster]:
    async with running_cluster(own_valkey.urls, tmp_path / "r", ({}, {}), clock=clock) as made:
        yield made


async def health_of(channel: grpc.aio.Channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5.0)).status)


async def test_a_router_without_redis_is_alive_and_serves_nobody_until_the_first_sync(
    own_valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    key = await new_tenant(own_valkey.urls, "acme")
    await end(own_valkey)
    async with (
        running(router_settings(own_valkey.urls, tmp_path / "r"), SystemClock()) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        acme = Tenant("acme", key, channel)
        states = health_pb2.HealthCheckResponse
        assert await health_of(channel, "") == states.SERVING
        assert await health_of(channel, SERVICE) == states.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await acme.generate(tokens_request(PROMPT))
        assert error.value.code() is Code.UNAVAILABLE
        assert detail_of(error.value, RetryInfo).retry_delay.ToMilliseconds() > 0
        own_valkey.restart()
        async with running_workers_of(own_valkey.urls, ({},)):

            async def ready() -> bool:
                return await health_of(channel, SERVICE) == states.SERVING

            await eventually_async(ready)
            assert (await acme.generate(tokens_request(PROMPT))).usage.completion_tokens == 8


async def test_redis_away_later_is_degraded_and_nothing_fails(
    cluster: Cluster, own_valkey: EmbeddedValkey, clock: SkewedClock
) -> None:
    first = await cluster.acme.generate(tokens_request(PROMPT))
    stream = cluster.acme.stream(tokens_request(PROMPT, max_tokens=200))
    await stream.read()
    await end(own_valkey)

    async def noticed() -> bool:
        """A router whose copy of the index is fresh says nothing of a store that has just gone."""
        return bool((await cluster.acme.generate(tokens_request(PROMPT))).route.degraded)

    await eventually_async(noticed)
    answers = [await cluster.acme.generate(tokens_request(PROMPT)) for _ in range(6)]
    assert all(answer.route.degraded for answer in answers)
    await eventually_async(
        lambda: lacks(cluster, {admin_pb2.DEGRADED_REASON_REGISTRY, admin_pb2.DEGRADED_REASON_INDEX})
    )
    assert (await status_of(cluster)).degraded_requests >= len(answers)
    assert all(answer.completions == first.completions for answer in answers)
    assert any(answer.usage.cached_tokens == 79 for answer in answers), "workers still reuse what they hold"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.acme.stub.Generate(tokens_request(PROMPT), timeout=10.0, metadata=(("x-api-key", "sc-no-no"),))
    assert error.value.code() is Code.UNAUTHENTICATED
    events = [event async for event in rest_of(stream)]
    assert events[-1].HasField("finished")

    clock.ahead_s = CONTROL_AGE_BOUND_S + 1
    stale = await cluster.acme.generate(tokens_request(PROMPT))
    assert (stale.route.degraded, stale.usage.cached_tokens) == (True, 0)
    assert await lacks(cluster, {admin_pb2.DEGRADED_REASON_CONTROL_DATA})
    assert stale.completions == first.completions

    own_valkey.restart()

    async def recovered() -> bool:
        answer = await cluster.acme.generate(tokens_request(PROMPT))
        assert answer.completions == first.completions
        return not answer.route.degraded and answer.usage.cached_tokens == 79

    await eventually_async(recovered)
    await eventually_async(lambda: lacks_nothing(cluster))


async def test_redis_back_empty_ends_nothing_and_hits_come_back(cluster: Cluster, own_valkey: EmbeddedValkey) -> None:
    first = await cluster.acme.generate(tokens_request(PROMPT))
    stream = cluster.acme.stream(tokens_request(PROMPT, max_tokens=3_000))
    await stream.read()
    RedisServer("valkey", own_valkey.urls).wipe()

    async def recovered() -> bool:
        try:
            answer = await cluster.acme.generate(tokens_request(PROMPT))
        except grpc.aio.AioRpcError as error:
            if error.code() is not Code.UNAVAILABLE:
                raise
            return False
        assert answer.completions == first.completions
        record = await cluster.record(cluster.acme, answer.request_id)
        return not answer.route.degraded and any(term.matched_tokens for term in record.terms)

    await eventually_async(recovered)
    events = [event async for event in rest_of(stream)]
    assert events[-1].finished.usage.completion_tokens == 3_000


async def status_of(cluster: Cluster) -> Any:
    request = admin_pb2.GetStatusRequest()
    return await cluster.cluster_admin.GetStatus(request, timeout=10.0, metadata=ADMIN_METADATA)


async def lacks(cluster: Cluster, reasons: set[int]) -> bool:
    """Whether the operator is told at least these reasons."""
    status = await status_of(cluster)
    return status.degraded and reasons <= set(status.degraded_reasons)


async def lacks_nothing(cluster: Cluster) -> bool:
    status = await status_of(cluster)
    return not status.degraded and not status.degraded_reasons


async def rest_of(call: grpc.aio.UnaryStreamCall) -> AsyncIterator[pb.GenerateStreamResponse]:  # type: ignore[type-arg]
    while (event := await call.read()) is not grpc.aio.EOF:
        yield event
