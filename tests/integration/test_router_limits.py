"""Limits of a tenant over three routers, a real worker and a real Valkey, as callers see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2, cache_pb2_grpc
from stemcache.v1 import inference_pb2 as pb

from cache_store.clock import SystemClock
from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    Cluster,
    Tenant,
    detail_of,
    router_settings,
    running,
    running_cluster,
    tokens_request,
    until_served,
)
from worker.config import NumBlocks

NUM_ROUTERS = 3
PROMPT = list(range(100, 180))
LONG = {"max_tokens": 3_000}
Code = grpc.StatusCode


@dataclass
class Three:
    """One cluster with two more routers; tenants call each router by its position."""

    cluster: Cluster
    acme: list[Tenant]
    globex: list[Tenant]

    @property
    def num_running(self) -> int:
        """Requests at the worker."""
        return self.cluster.workers[0].thread.num_open

    async def limit(self, tenant: str, **limits: int) -> None:
        """Sets limits of a tenant and waits until all routers know them."""
        request = admin_pb2.SetTenantQuotaRequest(tenant=tenant, **limits)
        await self.cluster.tenant_admin.SetTenantQuota(request, timeout=10.0, metadata=ADMIN_METADATA)
        await asyncio.sleep(1.0)


@pytest.fixture
async def three(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Three]:
    urls = server_named(request, "valkey").urls
    worker = {"digest_step_s": 0.004, "pool": NumBlocks(8_192)}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(urls, tmp_path / "0", (worker,)))
        made = Three(cluster, [cluster.acme], [cluster.globex])
        for at in range(1, NUM_ROUTERS):
            settings = router_settings(urls, tmp_path / str(at))
            router = await stack.enter_async_context(running(settings, SystemClock()))
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(router.address))
            for tenants in (made.acme, made.globex):
                key = tenants[0].metadata[0][1].removeprefix("Bearer ")
                tenants.append(Tenant(tenants[0].name, key, channel))
            await until_served(made.acme[at], 1)
        yield made


def require_refused(error: grpc.aio.AioRpcError, subject: str) -> None:
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert detail_of(error, QuotaFailure).violations[0].subject == subject


async def refusal(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    assert error.value.code() is Code.RESOURCE_EXHAUSTED
    return error.value


def retry_s(error: grpc.aio.AioRpcError) -> float:
    return detail_of(error, RetryInfo).retry_delay.ToMilliseconds() / 1000


async def test_requests_in_flight_reach_the_limit_and_never_exceed_it(three: Three) -> None:
    await three.limit("acme", requests_in_flight=8)
    seen: list[int] = []
    ends_s = time.monotonic() + 3.0

    async def watch() -> None:
        while time.monotonic() < ends_s:
            seen.append(three.num_running)
            await asyncio.sleep(0.002)

    async def client(tenant: Tenant, number: int) -> None:
        while time.monotonic() < ends_s:
            try:
                await tenant.generate(tokens_request([*PROMPT, number], max_tokens=20))
            except grpc.aio.AioRpcError as error:
                require_refused(error, "requests in flight")
                await asyncio.sleep(0.02)

    clients = [client(tenant, number) for tenant in three.acme for number in range(8)]
    await asyncio.gather(watch(), *clients)
    assert max(seen) == 8


async def test_one_at_a_time_over_all_routers_is_never_refused(three: Three) -> None:
    await three.limit("acme", requests_in_flight=1)
    for turn in range(12):
        answer = await three.acme[turn % NUM_ROUTERS].generate(tokens_request([*PROMPT, turn]))
        assert answer.usage.completion_tokens == 8
        assert not answer.route.degraded


async def test_the_refusal_tells_the_limit_and_when_to_retry_and_others_do_not_matter(three: Three) -> None:
    await three.limit("acme", requests_in_flight=4)
    streams = [three.acme[0].stream(tokens_request([*PROMPT, at], **LONG)) for at in range(4)]
    for stream in streams:
        await stream.read()
    error = await refusal(three.acme[1].generate(tokens_request(PROMPT)))
    require_refused(error, "requests in flight")
    assert "has 4 requests in flight, which is its limit" in (error.details() or "")
    assert 0 < retry_s(error) <= 5

    theirs = [three.globex[at % 3].stream(tokens_request([*PROMPT, at], **LONG)) for at in range(12)]
    for stream in theirs:
        await stream.read()
    again = await refusal(three.acme[1].generate(tokens_request(PROMPT)))
    assert (again.details(), again.trailing_metadata()) == (error.details(), error.trailing_metadata())
    assert (await three.globex[1].generate(tokens_request(PROMPT))).usage.completion_tokens == 8

    streams[0].cancel()
    await asyncio.sleep(0.3)
    assert (await three.acme[2].generate(tokens_request(PROMPT))).usage.completion_tokens == 8
    for stream in (*streams, *theirs):
        stream.cancel()


async def test_a_retry_that_attaches_is_counted_once(three: Three) -> None:
    await three.limit("acme", requests_in_flight=1)
    request = tokens_request(PROMPT, request_id="r", max_tokens=100)
    stream = three.acme[0].stream(request)
    await stream.read()
    assert (await three.acme[0].generate(request)).request_id == "r"
    assert (await three.acme[0].generate(request)).request_id == "r"
    stream.cancel()


async def test_warming_a_prefix_counts_too(three: Three) -> None:
    await three.limit("acme", requests_in_flight=1)
    warm = cache_pb2.WarmPrefixRequest(prompt=tokens_request(PROMPT).prompt)
    stub = cache_pb2_grpc.CacheServiceStub(three.cluster.channel)
    stream = three.acme[0].stream(tokens_request(PROMPT, **LONG))
    await stream.read()
    error = await refusal(stub.WarmPrefix(warm, timeout=10.0, metadata=three.acme[0].metadata))
    require_refused(error, "requests in flight")
    await stub.WarmPrefix(warm, timeout=10.0, metadata=three.globex[0].metadata)
    stream.cancel()


async def test_tokens_per_second_are_used_up_and_not_exceeded(three: Three) -> None:
    rate, window_s = 2_000, 10.0
    await three.limit("acme", tokens_per_s=rate)
    spent: list[tuple[float, int]] = []
    start_s = time.monotonic()
    ends_s = start_s + window_s + 2.0

    async def client(tenant: Tenant, number: int) -> None:
        turn = 0
        while time.monotonic() < ends_s:
            turn += 1
            prompt = [number, turn % 1_000, turn // 1_000, *PROMPT[:61]]
            try:
                usage = (await tenant.generate(tokens_request(prompt, max_tokens=16))).usage
            except grpc.aio.AioRpcError as error:
                require_refused(error, "tokens per second")
                await asyncio.sleep(retry_s(error))
            else:
                spent.append((time.monotonic(), usage.computed_tokens + usage.completion_tokens))

    await asyncio.gather(*(client(three.acme[at % NUM_ROUTERS], at + 1) for at in range(12)))
    for begins_s in (start_s, start_s + 1.0, start_s + 2.0):
        used = sum(tokens for at_s, tokens in spent if begins_s <= at_s < begins_s + window_s)
        assert 0.85 * rate * window_s <= used <= 1.1 * rate * window_s


async def test_cached_tokens_cost_nothing(three: Three) -> None:
    long = list(range(1_000, 1_960))
    await three.limit("acme", tokens_per_s=1_000)
    await three.acme[0].generate(tokens_request(long, max_tokens=1))
    await asyncio.sleep(1.2)
    for turn in range(20):
        answer = await three.acme[turn % NUM_ROUTERS].generate(tokens_request(long, max_tokens=1))
        assert answer.usage.cached_tokens >= 944
    error = await refusal(_until_refused(three.acme[0]))
    require_refused(error, "tokens per second")
    assert 0 < retry_s(error) < 5


async def _until_refused(tenant: Tenant) -> pb.GenerateResponse:
    for turn in range(5):
        await tenant.generate(tokens_request(range(2_000 + turn, 3_000 + turn), max_tokens=1))
    raise AssertionError("uncached tokens were not counted")
