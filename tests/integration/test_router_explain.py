"""What the operator is told of real requests: why they went where they went, and why they missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2
from stemcache.v1 import inference_pb2 as pb

from services.cluster.valkey import EmbeddedValkey
from services.router.speculations import SETTLED_S
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_METADATA, Cluster, eventually_async, running_cluster, tokens_request
from worker.config import NumBlocks

PROMPT = list(range(100, 180))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path, ({"pool": NumBlocks(12)},)) as made:
        yield made


async def explained(cluster: Cluster, tokens: list[int], request_id: str, **fields: Any) -> Any:
    """What is told of a request of acme, once it has ended."""
    await cluster.acme.generate(tokens_request(tokens, request_id=request_id, max_tokens=2, **fields))
    request = admin_pb2.ExplainRequestRequest(tenant="acme", request_id=request_id)
    return await cluster.cluster_admin.ExplainRequest(request, timeout=10.0, metadata=ADMIN_METADATA)


async def test_why_a_request_hit_or_missed(cluster: Cluster) -> None:
    first = await explained(cluster, PROMPT, "first")
    assert first.miss_reason == admin_pb2.MISS_REASON_NEVER_STORED
    assert first.worker_id == "worker-0"
    again = await explained(cluster, PROMPT, "again")
    assert again.miss_reason == admin_pb2.MISS_REASON_NONE
    assert again.record.cached_tokens == again.first_missing_token == 79
    branch = await explained(cluster, [*PROMPT[:40], *range(500, 540)], "branch")
    assert branch.miss_reason == admin_pb2.MISS_REASON_DIFFERS
    assert "in block 3" in branch.reuse
    bypass = await explained(cluster, PROMPT, "bypass", mode=pb.CachePolicy.MODE_BYPASS)
    assert bypass.miss_reason == admin_pb2.MISS_REASON_BYPASSED


async def test_an_evicted_prompt_is_told_from_one_that_never_was(cluster: Cluster) -> None:
    await explained(cluster, PROMPT, "first")
    number = 0

    async def evicted() -> bool:
        nonlocal number
        number += 1
        await explained(cluster, list(range(1_000 * number, 1_000 * number + 150)), f"flood-{number}")
        await asyncio.sleep(SETTLED_S + 0.3)  # until the router has read of it
        told = await explained(cluster, PROMPT, f"again-{number}")
        return bool(told.miss_reason == admin_pb2.MISS_REASON_EVICTED)

    await eventually_async(evicted)


async def test_a_purge_is_told(cluster: Cluster) -> None:
    await explained(cluster, PROMPT, "first")
    request = cache_pb2.PurgeCacheRequest(everything=True)
    await cluster.acme.cache.PurgeCache(request, timeout=10.0, metadata=cluster.acme.metadata)
    told = await explained(cluster, PROMPT, "again")
    assert told.miss_reason == admin_pb2.MISS_REASON_PURGED


async def test_a_request_that_is_not_remembered_is_not_found(cluster: Cluster) -> None:
    request = admin_pb2.ExplainRequestRequest(tenant="acme", request_id="none")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.cluster_admin.ExplainRequest(request, timeout=10.0, metadata=ADMIN_METADATA)
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
