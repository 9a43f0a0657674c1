"""What routers and workers show to Prometheus, of real requests through a real cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache_store.telemetry.listen import MetricsListen
from services.cluster.valkey import EmbeddedValkey
from services.router.speculations import SETTLED_S
from tests.support.redis_servers import server_named
from tests.support.router_host import Cluster, eventually_async, running_cluster, tokens_request
from tests.support.scrapes import fetch, scrape
from worker.config import NumBlocks

PROMPT = list(range(10, 10 + 64))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    worker = {"metrics": MetricsListen(), "pool": NumBlocks(24), "host_pool": NumBlocks(16)}
    async with running_cluster(urls, tmp_path, (worker,), metrics=MetricsListen()) as cluster:
        yield cluster


async def test_a_hit_shows_as_tokens_at_router_and_worker(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.acme.generate(tokens_request(PROMPT))
    await cluster.globex.generate(tokens_request(PROMPT))
    router, worker = await scrape(cluster.router.metrics_address), await scrape(cluster.workers[0].metrics_address)
    assert router.of("stemcache_requests_total", status="OK") == 3
    assert router.of("stemcache_prompt_tokens_total") == worker.of("stemcache_worker_prompt_tokens_total") == 192
    assert router.of("stemcache_hit_tokens_total", tier="device") == 63
    assert worker.of("stemcache_worker_hit_tokens_total", tier="device") == 63
    assert router.of("stemcache_computed_tokens_total") == 129
    assert worker.of("stemcache_worker_computed_tokens_total") == 129
    assert router.of("stemcache_completion_tokens_total") == worker.of("stemcache_worker_generated_tokens_total") == 24
    assert router.of("stemcache_tenant_cached_tokens_total", tenant="acme") == 63
    assert router.of("stemcache_tenant_cached_tokens_total", tenant="globex") == 0
    for name in ("time_to_first_token", "time_per_output_token", "request_duration", "request_prefill"):
        assert router.of(f"stemcache_{name}_seconds_count") == 3
    assert worker.of("stemcache_inter_token_latency_seconds_count") == 3 * 7


async def test_workers_show_what_dashboards_for_vllm_read(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.acme.generate(tokens_request(PROMPT))
    worker = await scrape(cluster.workers[0].metrics_address)
    model = {"model_name": "token-digest"}
    assert worker.of("vllm:prefix_cache_queries_total", **model) == 128
    assert worker.of("vllm:prefix_cache_hits_total", **model) == 63
    assert worker.of("vllm:prompt_tokens_total", **model) == 128
    assert worker.of("vllm:generation_tokens_total", **model) == 16
    assert worker.of("vllm:time_to_first_token_seconds_count", **model) == 2
    assert worker.of("vllm:request_success_total", finished_reason="length", **model) == 2
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert worker.of(f"vllm:{name}", **model) == 0


async def test_blocks_add_up_and_evictions_and_tiers_show(cluster: Cluster) -> None:
    for at in range(12):
        await cluster.acme.generate(tokens_request([at * 100 + token for token in range(1, 81)]))
    worker = await scrape(cluster.workers[0].metrics_address)
    states = [worker.of("stemcache_blocks", tier="device", state=each) for each in ("held", "cached", "free")]
    assert sum(states) == 24
    assert states[0] == 0
    assert states[1] > 0
    assert worker.of("stemcache_evicted_blocks_total", reason="room") > 0
    assert worker.of("stemcache_demoted_blocks_total") > 0
    assert worker.of("stemcache_blocks", tier="host", state="cached") > 0
    assert worker.of("stemcache_lent_blocks", tier="device") == 0
    block_bytes = worker.of("stemcache_kv_predicted_bytes_per_token") * worker.of("stemcache_block_tokens")
    assert worker.of("stemcache_kv_pool_bytes") == 24 * block_bytes
    parts = [worker.of("stemcache_step_seconds_total", part=each) for each in ("schedule", "forward", "commit")]
    assert all(seconds > 0 for seconds in parts)
    assert worker.of("process_resident_memory_bytes") > 1 << 20
    assert worker.of("process_start_time_seconds") > 1_700_000_000


async def test_what_evictions_cost_is_counted(cluster: Cluster) -> None:
    first = list(range(1, 161))
    await cluster.acme.generate(tokens_request(first))
    number = 0

    async def computed_again() -> bool:
        nonlocal number
        for _ in range(6):
            number += 1
            await cluster.acme.generate(tokens_request([number * 200 + token for token in range(1, 161)]))
        await asyncio.sleep(SETTLED_S + 0.3)  # until the router has read of it
        await cluster.acme.generate(tokens_request(first))
        router = await scrape(cluster.router.metrics_address)
        return router.of("stemcache_eviction_recompute_tokens_total") > 0

    await eventually_async(computed_again)
    router = await scrape(cluster.router.metrics_address)
    assert router.of("stemcache_eviction_recompute_seconds_total") > 0
    tokens = router.of("stemcache_eviction_recompute_tokens_total")
    assert tokens <= router.of("stemcache_computed_tokens_total")


async def test_the_router_names_all_that_are_to_be_scraped(cluster: Cluster) -> None:
    groups = json.loads(await fetch(cluster.router.metrics_address, "/targets"))
    found = {group["labels"]["role"]: group["targets"] for group in groups}
    assert found == {
        "router": [cluster.router.metrics_address],
        "worker": [cluster.workers[0].metrics_address],
    }


async def test_nothing_secret_is_shown(cluster: Cluster) -> None:
    await cluster.acme.generate(tokens_request([31_337, 27_182] * 16, request_id="request-zebra", session_id="zebra"))
    for address in (cluster.router.metrics_address, cluster.workers[0].metrics_address):
        page = await scrape(address)
        for secret in ("31337", "27182", "zebra", cluster.acme.key, cluster.acme.key.rpartition("-")[2]):
            assert secret not in page.text
    worker = await scrape(cluster.workers[0].metrics_address)
    assert "acme" not in worker.text
    assert worker.labels("tenant") == set()
    router = await scrape(cluster.router.metrics_address)
    assert router.labels("tenant") == {"acme"}
    assert not [name for name, has in router.values if name.endswith("_bucket") and "tenant" in dict(has)]


async def test_tenants_do_not_reach_metrics_by_their_own_port(cluster: Cluster) -> None:
    with pytest.raises(AssertionError):
        await fetch(cluster.router.address)
