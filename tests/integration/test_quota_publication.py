"""Quotas from the operator's call to the engines of all workers: real router, real workers, a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.clock import SystemClock
from cache_store.domain import TenantId
from cache_store.redis_keys import QUOTAS_KEY
from cache_store.registry import RENEW_S
from services.cluster.redis_roles import RoleUrls
from services.tenants.quota_publisher import PUBLISH_S
from services.tenants.redis_store import CONTROL_KEY
from services.tenants.sync import POLL_S
from tests.support.redis_servers import RedisServer
from tests.support.router_host import (
    ADMIN_METADATA,
    Cluster,
    eventually,
    eventually_async,
    router_settings,
    running,
    running_cluster,
    start_worker,
    tokens_request,
)
from worker.config import NumBlocks
from worker.host import WorkerHost

NUM_BLOCKS = 512


@pytest.fixture
def urls(redis_server: RedisServer) -> RoleUrls:
    return redis_server.urls


@pytest.fixture
async def cluster(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(urls, tmp_path / "router", ({}, {})) as made:
        yield made


@pytest.fixture
async def redis(urls: RoleUrls) -> AsyncIterator[Redis]:
    client = Redis.from_url(urls.operator)
    yield client
    await client.aclose()


async def set_guarantee(cluster: Cluster, tenant: str, minimum: float) -> TenantId:
    request = admin_pb2.SetTenantQuotaRequest(tenant=tenant, tiers=[admin_pb2.TierShare(tier="device", min=minimum)])
    answer = await cluster.tenant_admin.SetTenantQuota(request, timeout=10.0, metadata=ADMIN_METADATA)
    return TenantId(answer.tenant.uuid)


def guaranteed(host: WorkerHost, tenant: TenantId) -> int | None:
    """Blocks that a worker guarantees to a tenant, as it tells the registry."""
    found = [use.guaranteed_blocks for use in host.record().load.tenants if use.tenant == tenant]
    return found[0] if found else None


def in_force(hosts: list[WorkerHost], tenant: TenantId, num_blocks: int) -> Callable[[], bool]:
    return lambda: all(guaranteed(host, tenant) == num_blocks for host in hosts)


async def test_a_change_is_in_force_on_all_workers_and_on_those_that_come_later(
    cluster: Cluster, urls: RoleUrls
) -> None:
    acme = await set_guarantee(cluster, "acme", 0.25)
    await eventually(in_force(cluster.workers, acme, NUM_BLOCKS // 4))
    await set_guarantee(cluster, "acme", 0.5)
    await eventually(in_force(cluster.workers, acme, NUM_BLOCKS // 2))
    late = await start_worker(urls, "late")
    try:
        await eventually(in_force([late], acme, NUM_BLOCKS // 2))
    finally:
        await late.stop()


def test_a_change_needs_one_look_of_a_router_and_one_of_each_worker() -> None:
    """At another router, one of its polls comes first."""
    assert POLL_S + PUBLISH_S + RENEW_S <= 2.0


async def test_quotas_survive_an_emptied_server(cluster: Cluster, redis: Redis, urls: RoleUrls) -> None:
    acme = await set_guarantee(cluster, "acme", 0.25)
    await eventually(in_force(cluster.workers, acme, NUM_BLOCKS // 4))
    await redis.delete(CONTROL_KEY, QUOTAS_KEY)
    late = await start_worker(urls, "late")
    try:
        await eventually(in_force([*cluster.workers, late], acme, NUM_BLOCKS // 4))
    finally:
        await late.stop()


async def test_an_old_document_that_is_put_back_takes_nothing_away(cluster: Cluster, redis: Redis) -> None:
    acme = await set_guarantee(cluster, "acme", 0.25)
    await eventually(in_force(cluster.workers, acme, NUM_BLOCKS // 4))
    old: Any = await redis.hgetall(QUOTAS_KEY)
    await set_guarantee(cluster, "acme", 0.5)
    await eventually(in_force(cluster.workers, acme, NUM_BLOCKS // 2))
    generations = [host.record().quota_generation for host in cluster.workers]
    await redis.hset(QUOTAS_KEY, mapping=old)
    await set_guarantee(cluster, "globex", 0.125)
    await eventually(lambda: all(host.record().quota_generation > generations[0] for host in cluster.workers))
    assert in_force(cluster.workers, acme, NUM_BLOCKS // 2)()


async def test_a_change_at_one_router_is_published_while_another_one_runs(
    cluster: Cluster, urls: RoleUrls, tmp_path: Path
) -> None:
    async with running(router_settings(urls, tmp_path / "second"), SystemClock()):
        acme = await set_guarantee(cluster, "acme", 0.25)
        await eventually(in_force(cluster.workers, acme, NUM_BLOCKS // 4))


async def test_a_guarantee_keeps_what_a_flood_takes_without_it(urls: RoleUrls, tmp_path: Path) -> None:
    """Without one, two tenants of equal weight end up with half of the pool each."""
    async with running_cluster(urls, tmp_path / "router", ({"pool": NumBlocks(64)},)) as cluster:

        async def hit_after_flood() -> int:
            """Of acme's prompt, once it is cached and globex has sent four times what the pool holds."""
            prompt = tokens_request(range(640))
            await cluster.acme.generate(prompt)
            for at in range(16):
                await cluster.globex.generate(tokens_request(range(1_000 * at, 1_000 * at + 256), seed=at))
            return (await cluster.acme.generate(prompt)).usage.cached_tokens

        await set_guarantee(cluster, "acme", 0.75)
        await cluster.quotas_are_in_force()
        assert await hit_after_flood() == 639
        await set_guarantee(cluster, "acme", 0.0)
        await cluster.quotas_are_in_force()
        assert await hit_after_flood() <= 64 // 2 * 16


async def test_the_operator_sees_who_uses_what_on_which_worker(cluster: Cluster) -> None:
    acme = await set_guarantee(cluster, "acme", 0.25)
    await cluster.acme.generate(tokens_request(list(range(200))))

    async def seen() -> bool:
        status = await cluster.cluster_admin.GetStatus(
            admin_pb2.GetStatusRequest(), timeout=10.0, metadata=ADMIN_METADATA
        )
        uses = [use for worker in status.workers for use in worker.tenants if use.tenant == "acme"]
        generations = {worker.quota_generation for worker in status.workers}
        return (
            generations == {status.control_generation}
            and {use.guaranteed_blocks for use in uses} == {NUM_BLOCKS // 4}
            and sum(use.used_blocks for use in uses) == 200 // 16
        )

    await eventually(in_force(cluster.workers, acme, NUM_BLOCKS // 4))
    await eventually_async(seen)


async def test_a_deleted_tenants_blocks_are_dropped_and_its_guarantee_is_free(cluster: Cluster) -> None:
    await set_guarantee(cluster, "acme", 0.75)
    for router in (cluster.acme, cluster.globex):
        await router.generate(tokens_request(list(range(200))))
    await cluster.tenant_admin.DeleteTenant(
        admin_pb2.DeleteTenantRequest(name="acme"), timeout=10.0, metadata=ADMIN_METADATA
    )
    globex = await set_guarantee(cluster, "globex", 0.5)
    await eventually(in_force(cluster.workers, globex, NUM_BLOCKS // 2))

    async def told() -> bool:
        request = admin_pb2.GetStatusRequest()
        status = await cluster.cluster_admin.GetStatus(request, timeout=10.0, metadata=ADMIN_METADATA)
        uses = {use.tenant: use for worker in status.workers for use in worker.tenants if use.used_blocks}
        return set(uses) == {"globex"}

    await eventually_async(told)


async def test_the_tenants_api_tells_nothing_of_quotas(cluster: Cluster) -> None:
    """Paired with the answers of the operator's API above, which tell them."""
    acme = await set_guarantee(cluster, "acme", 0.625)
    await eventually(in_force(cluster.workers, acme, NUM_BLOCKS * 5 // 8))
    prompt = tokens_request(list(range(200)))
    answers = [
        await cluster.globex.generate(prompt),
        await cluster.globex.stub.ListModels(pb.ListModelsRequest(), timeout=5.0, metadata=cluster.globex.metadata),
    ]
    told = {field.name for message in answers for field in message.DESCRIPTOR.fields}
    assert not told & {"quota", "limits", "tenants", "pressure", "tenant"}
    for message in answers:
        assert acme not in str(message)
        assert "acme" not in str(message)
