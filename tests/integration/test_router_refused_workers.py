"""Redis answers routers and refuses workers: those that were known and answer go on, without what could be wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2

from cache_store.registry import LEASE_S
from cache_store.tokens import pack, unpack
from services.cluster.redis_roles import RedisRole
from services.router.registry_view import LOST_AFTER_S
from tests.chaos.store import Store
from tests.support.router_host import ADMIN_METADATA, Cluster, eventually, running_cluster, tokens_request
from worker import rpc_purge
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.sampling import SamplingParams

PROMPT = list(range(100, 180))
"""Five blocks of 16."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "v")
    await store.start()
    yield store
    await store.kill()


@pytest.fixture
async def cluster(store: Store, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(store.urls, tmp_path / "r", ({}, {})) as made:
        await made.quotas_are_in_force()
        yield made


def expected(prompt: list[int], num_tokens: int = 8) -> list[int]:
    info = digest_model()
    params = SamplingParams(0.0, 1.0, 0, 0, num_tokens, 0, ())
    (sample,) = expected_output(info.geometry, info.vocab_size, pack(prompt), params, 1)
    return list(sample.token_ids)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers have read last is believed for longer than a slow test takes."""
    monkeypatch.setattr(rpc_purge, "MAX_READ_AGE_S", 120.0)


async def status(cluster: Cluster) -> admin_pb2.GetStatusResponse:
    request = admin_pb2.GetStatusRequest()
    made: admin_pb2.GetStatusResponse = await cluster.cluster_admin.GetStatus(
        request, timeout=10.0, metadata=ADMIN_METADATA
    )
    return made


async def silent(cluster: Cluster, store: Store) -> None:
    """Workers are refused, and all leases have run out for longer than anybody is believed."""
    await store.remove_users(RedisRole.WORKER)
    view = cluster.router._parts.view
    await eventually(lambda: not view.is_renewed)
    await asyncio.sleep(2 * LOST_AFTER_S)


@pytest.mark.usefixtures("patient")
async def test_requests_go_on_and_the_operator_is_told(cluster: Cluster, store: Store) -> None:
    before = await cluster.acme.generate(tokens_request(PROMPT))
    assert unpack(before.completions[0].token_ids.packed) == expected(PROMPT)
    running = asyncio.create_task(cluster.acme.generate(tokens_request([7, *PROMPT], max_tokens=400)))
    await silent(cluster, store)
    for number in range(4):
        answer = await cluster.acme.generate(tokens_request([number, *PROMPT]))
        assert unpack(answer.completions[0].token_ids.packed) == expected([number, *PROMPT])
        assert answer.route.degraded
    assert (await cluster.acme.generate(tokens_request(PROMPT))).usage.cached_tokens, "what was cached is of no use"
    assert (await cluster.globex.generate(tokens_request(PROMPT))).usage.cached_tokens == 0
    assert unpack((await running).completions[0].token_ids.packed) == expected([7, *PROMPT], 400)
    told = await status(cluster)
    assert list(told.degraded_reasons) == [admin_pb2.DEGRADED_REASON_RENEWALS]
    assert len(told.workers) == 2
    await store.restore_users()
    view = cluster.router._parts.view
    await eventually(lambda: view.is_renewed and len(view.records()) == 2)
    assert not (await cluster.acme.generate(tokens_request(PROMPT))).route.degraded
    assert not (await status(cluster)).degraded_reasons


async def test_one_of_them_that_ends_is_lost_all_the_same(cluster: Cluster, store: Store) -> None:
    await silent(cluster, store)
    await cluster.workers[0].stop()
    view = cluster.router._parts.view
    await eventually(lambda: [record.worker_id for record in view.records()] == ["worker-1"])
    await eventually(lambda: len(view.incarnations()) == 1)
    answer = await cluster.acme.generate(tokens_request(PROMPT))
    assert unpack(answer.completions[0].token_ids.packed) == expected(PROMPT)


@pytest.mark.usefixtures("patient")
async def test_a_purge_holds_and_old_control_data_mean_no_reuse(
    cluster: Cluster, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers learn of the purge from the router; what they may have missed beyond it they do not risk."""
    await cluster.acme.generate(tokens_request(PROMPT))
    await cluster.globex.generate(tokens_request(PROMPT))
    await silent(cluster, store)
    purge = cache_pb2.PurgeCacheRequest(everything=True)
    purged = await cluster.acme.cache.PurgeCache(purge, timeout=20.0, metadata=cluster.acme.metadata)
    assert not purged.pending_workers, "a worker that answers was not told"
    assert (await cluster.acme.generate(tokens_request(PROMPT))).usage.cached_tokens == 0
    assert (await cluster.globex.generate(tokens_request(PROMPT))).usage.cached_tokens > 0
    monkeypatch.setattr(rpc_purge, "MAX_READ_AGE_S", 0.0)
    answer = await cluster.globex.generate(tokens_request(PROMPT))
    assert answer.usage.cached_tokens == 0, "reused by a worker that may have missed a purge"
    assert unpack(answer.completions[0].token_ids.packed) == expected(PROMPT)


async def test_a_revoked_key_stays_out(cluster: Cluster, store: Store) -> None:
    await silent(cluster, store)
    keys = await cluster.tenant_admin.ListApiKeys(
        admin_pb2.ListApiKeysRequest(tenant="acme"), timeout=10.0, metadata=ADMIN_METADATA
    )
    request = admin_pb2.RevokeApiKeyRequest(key_id=keys.keys[0].key_id)
    await cluster.tenant_admin.RevokeApiKey(request, timeout=10.0, metadata=ADMIN_METADATA)
    until_s = time.monotonic() + LEASE_S
    while time.monotonic() < until_s:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cluster.acme.generate(tokens_request(PROMPT))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await asyncio.sleep(0.2)
    assert (await cluster.globex.generate(tokens_request(PROMPT))).usage.prompt_tokens == len(PROMPT)
