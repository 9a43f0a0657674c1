"""Purges through a whole cluster: what was purged misses, everything else hits, and whoever was away comes up to it."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2 as pb
from stemcache.v1 import inference_pb2

from cache_store.clock import SystemClock
from cache_store.errors import UnavailableError
from cache_store.tokens import pack
from services.client import ApiNotFoundError, AsyncStemcacheClient, PurgeModel, PurgePartition
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.router.purge_rate import MAX_BURST
from services.tenants.master_key import cluster_key
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    MASTER,
    MODEL,
    Cluster,
    Tenant,
    detail_of,
    eventually_async,
    router_settings,
    running,
    running_cluster,
    tokens_request,
    until_served,
)
from tests.support.worker_process import worker_process

PROMPT = list(range(100, 180))
HIT = len(PROMPT) - 1
MINUTE = Duration(seconds=60)


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@pytest.fixture
async def cluster(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(urls, tmp_path) as made:
        yield made


async def cached(tenant: Tenant, partition: str = "") -> int:
    """Cached tokens of a request; afterwards its prompt is cached."""
    answer = await tenant.generate(tokens_request(PROMPT, max_tokens=1, partition=partition))
    return int(answer.usage.cached_tokens)


async def purge(tenant: Tenant, **scope: Any) -> pb.PurgeCacheResponse:
    request = pb.PurgeCacheRequest(**scope)
    response: pb.PurgeCacheResponse = await tenant.cache.PurgeCache(request, timeout=10.0, metadata=tenant.metadata)
    return response


async def operate(cluster: Cluster, method: str, request: Any) -> Any:
    return await getattr(cluster.tenant_admin, method)(request, timeout=10.0, metadata=ADMIN_METADATA)


async def used_blocks(cluster: Cluster, tenant: str) -> int:
    """Of a tenant, on all workers, as they told last."""
    request = admin_pb2.GetStatusRequest()
    status = await cluster.cluster_admin.GetStatus(request, timeout=10.0, metadata=ADMIN_METADATA)
    return sum(use.used_blocks for worker in status.workers for use in worker.tenants if use.tenant == tenant)


PARTITIONS = ("", "user-1")


@pytest.mark.parametrize(
    ("scope", "purged"),
    [
        ({"everything": True}, ("", "user-1")),
        ({"model": MODEL}, ("", "user-1")),
        ({"partition": "user-1"}, ("user-1",)),
        ({"partition": ""}, ("",)),
        ({"partition": "nobody"}, ()),
    ],
)
async def test_what_was_purged_misses_and_everything_else_hits(
    cluster: Cluster, scope: dict[str, Any], purged: tuple[str, ...]
) -> None:
    for _ in range(2):
        before = [await cached(cluster.acme, each) for each in PARTITIONS] + [await cached(cluster.globex)]
    assert before == [HIT] * 3
    answer = await purge(cluster.acme, **scope)
    after = [await cached(cluster.acme, each) for each in PARTITIONS]
    assert after == [0 if each in purged else HIT for each in PARTITIONS]
    assert await cached(cluster.globex) == HIT
    assert [await cached(cluster.acme, each) for each in PARTITIONS] == [HIT, HIT]
    assert (answer.acknowledged_workers, answer.pending_workers) == (1, 0)
    assert answer.purged_blocks.device_blocks == len(purged) * len(PROMPT) // 16
    assert 9 <= answer.complete_time.ToSeconds() - answer.purge_time.ToSeconds() <= 11


async def test_the_python_client_purges(cluster: Cluster) -> None:
    for partition in (*PARTITIONS, *PARTITIONS):
        await cached(cluster.acme, partition)
    async with AsyncStemcacheClient(cluster.router.address, cluster.acme.key) as client:
        purged = await client.cache.purge(PurgePartition("user-1"))
        with pytest.raises(ApiNotFoundError, match="'typo'"):
            await client.cache.purge(PurgeModel("typo"))
    assert (purged.acknowledged_workers, purged.purged_blocks.total) == (1, len(PROMPT) // 16)
    assert [await cached(cluster.acme, each) for each in PARTITIONS] == [HIT, 0]


async def test_the_answer_tells_a_tenant_nothing_of_others(cluster: Cluster) -> None:
    await cached(cluster.globex)
    answer = await purge(cluster.acme, everything=True)
    assert answer.purged_blocks == pb.BlocksByTier()
    assert "worker-0" not in str(answer)
    assert await cached(cluster.globex) == HIT


async def test_pins_of_what_was_purged_end_and_others_stay(cluster: Cluster) -> None:
    prompt = inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(packed=pack(PROMPT)))
    pins = {}
    for partition in PARTITIONS:
        await cached(cluster.acme, partition)
        request = pb.PinPrefixRequest(prompt=prompt, ttl=MINUTE, partition=partition)
        made = await cluster.acme.cache.PinPrefix(request, timeout=10.0, metadata=cluster.acme.metadata)
        pins[partition] = made.pin.pin_id
    await purge(cluster.acme, partition="user-1")
    listed = await cluster.acme.cache.ListPins(pb.ListPinsRequest(), timeout=10.0, metadata=cluster.acme.metadata)
    assert [pin.pin_id for pin in listed.pins] == [pins[""]]


async def test_the_operator_purges_rotates_and_deletes_with_a_receipt(cluster: Cluster) -> None:
    requests = {
        "PurgeTenantCache": admin_pb2.PurgeTenantCacheRequest(tenant="acme", partition=""),
        "RotateEpoch": admin_pb2.RotateEpochRequest(tenant="acme"),
        "DeleteTenant": admin_pb2.DeleteTenantRequest(name="acme"),
    }
    for method, request in requests.items():
        assert (await cached(cluster.acme), await cached(cluster.acme)) == (0, HIT)
        (worker,) = (await operate(cluster, method, request)).receipt.workers
        assert (worker.worker_id, worker.acknowledged, worker.error) == ("worker-0", True, "")
        assert worker.purged_blocks.device_blocks == len(PROMPT) // 16
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cached(cluster.acme)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("scope", "code", "says"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "set everything, partition or model"),
        ({"everything": False}, grpc.StatusCode.INVALID_ARGUMENT, "set it to true"),
        ({"model": ""}, grpc.StatusCode.INVALID_ARGUMENT, "name the model"),
        ({"model": "typo"}, grpc.StatusCode.NOT_FOUND, f"served are: {MODEL}"),
        ({"partition": "é" * 129}, grpc.StatusCode.INVALID_ARGUMENT, "at most 256"),
    ],
)
async def test_a_purge_of_nothing_is_refused_and_purges_nothing(
    cluster: Cluster, scope: dict[str, Any], code: grpc.StatusCode, says: str
) -> None:
    await cached(cluster.acme)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await purge(cluster.acme, **scope)
    assert refused.value.code() is code
    assert says in str(refused.value.details())
    assert await cached(cluster.acme) == HIT


async def test_a_tenant_that_purges_all_the_time_is_told_to_wait_and_others_are_not(cluster: Cluster) -> None:
    async def purge_all_the_time() -> None:
        for _ in range(MAX_BURST + 20):
            await purge(cluster.acme, partition="p")

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await purge_all_the_time()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail_of(refused.value, RetryInfo).retry_delay.ToMilliseconds() > 0
    await purge(cluster.globex, partition="p")


@asynccontextmanager
async def second_router(urls: RoleUrls, folder: Path, tenant: Tenant) -> AsyncIterator[tuple[Any, Tenant]]:
    """Another router of the cluster, and the tenant calling it."""
    async with (
        running(router_settings(urls, folder), SystemClock()) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        calling = Tenant(tenant.name, tenant.key, channel)
        await until_served(calling, 1)
        yield router, calling


async def away(*_: object) -> None:
    raise UnavailableError("cut off by the test", 1.0)


async def test_a_router_that_is_behind_reaches_nothing_on_a_worker_that_acknowledged(
    cluster: Cluster, urls: RoleUrls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with second_router(urls, tmp_path / "second", cluster.acme) as (router, acme):
        assert (await cached(cluster.acme), await cached(acme)) == (0, HIT)
        with monkeypatch.context() as patch:
            patch.setattr(router._parts.sync, "sync_once", away)
            assert (await purge(cluster.acme, everything=True)).acknowledged_workers == 1
            assert [await cached(acme) for _ in range(2)] == [0, 0]
            assert (await cached(cluster.acme), await cached(cluster.acme)) == (0, HIT)
            assert await cached(acme) == 0
        await router._parts.sync.sync_once()
        assert await cached(acme) == HIT


@pytest.fixture
async def lone_process(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[tuple[Cluster, Process]]:
    """A cluster whose worker can be stopped."""
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(running_cluster(urls, tmp_path, workers=()))
        process = await stack.enter_async_context(worker_process("worker-0", urls.worker, cluster_key(MASTER)))
        await until_served(made.acme, 1)
        yield made, process


async def test_a_worker_that_was_stopped_during_a_purge_comes_up_to_it_when_it_goes_on(
    lone_process: tuple[Cluster, Process],
) -> None:
    cluster, process = lone_process
    for _ in range(2):
        before = [await cached(cluster.acme), await cached(cluster.globex)]
    assert before == [HIT, HIT]
    process.send_signal(signal.SIGSTOP)
    answer = await purge(cluster.acme, everything=True)
    assert (answer.acknowledged_workers, answer.pending_workers) == (0, 1)
    process.send_signal(signal.SIGCONT)

    async def is_dropped() -> bool:
        return await used_blocks(cluster, "acme") == 0

    await eventually_async(is_dropped)
    assert (await cached(cluster.acme), await cached(cluster.acme), await cached(cluster.globex)) == (0, HIT, HIT)


async def test_purges_of_many_partitions_at_once_all_come_through(cluster: Cluster) -> None:
    partitions = [f"user-{number}" for number in range(8)]
    for each in partitions:
        await cached(cluster.acme, each)
    answers = await asyncio.gather(*(purge(cluster.acme, partition=each) for each in partitions))
    assert [answer.acknowledged_workers for answer in answers] == [1] * 8
    assert [await cached(cluster.acme, each) for each in partitions] == [0] * 8
    assert [await cached(cluster.acme, each) for each in partitions] == [HIT] * 8
