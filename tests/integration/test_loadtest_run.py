"""Whole load tests against a real cluster with token-digest workers, in this process: what is measured, and when."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from stemcache.admin.v1 import admin_pb2

from services.loadtest.arrivals import Arrival, Bounds, ClosedLoop, OpenLoop
from services.loadtest.conditions import CacheState
from services.loadtest.lifecycle import Measured, Run, Screen
from services.loadtest.live import Live
from services.loadtest.result import MAIN_PERCENTILES
from services.loadtest.run_plan import CacheStart, Priming, RunPlan, TenantPlan
from services.loadtest.stemcache_backend import StemcacheBackend
from services.loadtest.workloads import USUAL, WorkloadKind, WorkloadSpec
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_METADATA, Cluster, Tenant, running_cluster
from worker.config import NumBlocks

SHARED = replace(
    USUAL[WorkloadKind.SHARED_PREFIX], num_prefixes=3, prefix_len=64, suffix_len=10, output_len=4, range_ratio=0.5
)
CHATS = replace(USUAL[WorkloadKind.CONVERSATION], prefix_len=48, suffix_len=9, output_len=7, turns=4)
"""Prefixes of whole blocks: a block that two prompts begin alike is shared once the first of them has filled it."""
FAST = OpenLoop(math.inf, max_concurrency=4)


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    workers = [{"pool": NumBlocks(512)}]
    async with running_cluster(server_named(request, "valkey").urls, tmp_path, workers) as made:
        yield made


def part(tenant: Tenant, spec: WorkloadSpec = SHARED, arrival: Arrival = FAST, number: int = 24) -> TenantPlan:
    return TenantPlan(tenant.name, tenant.name, tenant.key, 1.0, spec, arrival, Bounds(number, None), {})


def plan(*parts: TenantPlan, partition: str = "p", start: CacheStart = CacheStart.FRESH) -> RunPlan:
    return RunPlan(
        tenants=parts,
        seed=1,
        partition=partition,
        cache_start=start,
        priming=Priming.PREFIXES,
        num_warmups=2,
        drain_s=5.0,
        sample_s=0.1,
        percentiles=MAIN_PERCENTILES,
        goodput_ms={},
        pool_tokens=0,
        settings={},
    )


async def measure(cluster: Cluster, plan: RunPlan, stop: asyncio.Event | None = None) -> Measured:
    async def follow(live: Live) -> None:
        live.view()

    backend = StemcacheBackend(cluster.router.address, plan.tenants[0].api_key, "", 30.0)
    try:
        return await Run(plan, backend, None, Screen(lambda text: None, follow)).measure(stop or asyncio.Event())
    finally:
        await backend.close()


async def test_what_the_workload_could_reuse_is_reused_and_nothing_more(cluster: Cluster) -> None:
    """Two tenants at once: prefixes that were primed are hit by their tenant, to the last token of the upper bound."""
    measured = await measure(cluster, plan(part(cluster.acme), part(cluster.globex, CHATS, number=12)))
    result, conditions = measured.result, measured.conditions
    assert (result.completed, result.failed, result.status_codes) == (36, 0, {"OK": 36})
    for row in measured.rows:
        assert row.cached_tokens == row.cacheable_tokens
        assert row.prompt_tokens > 0
        assert row.written_tokens <= row.prompt_tokens + row.completion_tokens
        assert row.completion_tokens == row.max_tokens == sum(row.arrival_tokens or (1,) * len(row.arrivals_s))
        assert row.server is not None
        assert row.intended_s <= row.sent_s <= (row.first_token_s or 0.0) <= row.end_s
    assert result.prefix_cache.reached_share == 1.0
    assert set(result.tenants) == {"acme", "globex"}
    assert conditions.cache_state is CacheState.PRIMED
    assert [row.tenant for row in measured.prime_rows] == ["acme"] * 3 + ["globex"]
    assert [row.turn for row in measured.rows if row.session == "c0"] == [0, 1, 2, 3]
    assert not [each for each in result.warnings if "warm" in each or "number of tokens" in each]


async def test_a_repeated_seed_measures_a_cold_cache_unless_it_is_told_to_keep_it(cluster: Cluster) -> None:
    one = replace(plan(part(cluster.acme, arrival=ClosedLoop(1))), priming=Priming.NONE)
    first = await measure(cluster, one)
    fresh = await measure(cluster, replace(one, partition="another"))
    assert [row.cached_tokens for row in fresh.rows] == [row.cached_tokens for row in first.rows]
    assert [row.prompt_tokens for row in fresh.rows] == [row.prompt_tokens for row in first.rows]
    kept = replace(one, partition="kept", cache_start=CacheStart.KEEP)
    await measure(cluster, kept)
    warm = await measure(cluster, kept)
    assert warm.result.prefix_cache.cached_tokens > first.result.prefix_cache.cached_tokens
    assert warm.conditions.cache_state is CacheState.KEPT
    assert any("was not emptied" in each for each in warm.result.warnings)
    purged = await measure(cluster, replace(kept, cache_start=CacheStart.PURGE))
    assert [row.cached_tokens for row in purged.rows] == [row.cached_tokens for row in first.rows]


async def test_a_warm_cache_that_nobody_asked_for_is_noticed(cluster: Cluster) -> None:
    """Verification: somebody filled this very space before, so that more was cached than the run had sent."""
    one = replace(plan(part(cluster.acme, arrival=ClosedLoop(1)), partition="p"), priming=Priming.NONE)
    await measure(cluster, replace(one, cache_start=CacheStart.KEEP))
    measured = await measure(cluster, one)
    assert any("the cache was warm" in each for each in measured.result.warnings)


async def test_errors_are_counted_by_their_status(cluster: Cluster) -> None:
    too_long = replace(USUAL[WorkloadKind.RANDOM], suffix_len=8_100, output_len=10)
    measured = await measure(cluster, replace(plan(part(cluster.acme, too_long, number=3)), num_warmups=0))
    assert measured.result.completed + measured.result.failed == 3
    bad = replace(part(cluster.globex), api_key="sc-unknown")
    mixed = plan(part(cluster.acme), bad, start=CacheStart.KEEP)
    refused = await measure(cluster, replace(mixed, num_warmups=0, priming=Priming.NONE))
    assert refused.result.tenants["globex"].status_codes == {"UNAUTHENTICATED": 24}
    assert refused.result.tenants["acme"].status_codes == {"OK": 24}


async def test_a_system_that_goes_away_takes_no_result_with_it(cluster: Cluster) -> None:
    """Here its key does: nothing is answered any more, nor forgotten what was cached."""
    stop = asyncio.Event()
    endless = replace(part(cluster.acme, arrival=ClosedLoop(2)), bounds=Bounds(None, 600.0))
    task = asyncio.create_task(measure(cluster, plan(endless), stop))
    await asyncio.sleep(1.5)
    revoked = admin_pb2.RevokeApiKeyRequest(key_id=cluster.acme.key.split("-")[1])
    await cluster.tenant_admin.RevokeApiKey(revoked, metadata=ADMIN_METADATA)
    await asyncio.sleep(0.5)
    stop.set()
    measured = await task
    assert measured.result.status_codes.keys() >= {"OK", "UNAUTHENTICATED"}
    assert any("still cached" in each for each in measured.result.warnings)


async def test_a_stop_in_the_middle_gives_a_result(cluster: Cluster) -> None:
    stop = asyncio.Event()
    endless = replace(part(cluster.acme, arrival=ClosedLoop(2)), bounds=Bounds(None, 600.0))
    task = asyncio.create_task(measure(cluster, plan(endless), stop))
    asyncio.get_running_loop().call_later(1.5, stop.set)
    measured = await task
    assert measured.result.interrupted
    assert len(measured.rows) == measured.result.completed + measured.result.failed
