"""Workers that leave while the registry says nothing of it: requests pass them by, and somebody always stays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from stemcache.admin.v1 import admin_pb2

from services.cluster.valkey import EmbeddedValkey
from tests.support.router_host import ADMIN_METADATA, Cluster, eventually, running_cluster, tokens_request
from worker import rpc_purge


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """Nobody else's."""
    with EmbeddedValkey.start(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
async def cluster(server: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Of three workers; the tenant acme is strict."""
    async with running_cluster(server.urls, tmp_path, [{}] * 3) as cluster:
        share = admin_pb2.TierShare(tier="device", min=0.5, max=0.5)
        request = admin_pb2.SetTenantQuotaRequest(tenant="acme", tiers=[share])
        await cluster.tenant_admin.SetTenantQuota(request, timeout=10.0, metadata=ADMIN_METADATA)
        await cluster.quotas_are_in_force()
        yield cluster


@contextmanager
def silent(server: EmbeddedValkey) -> Iterator[None]:
    """Stopped in the middle of what it does."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_worker_that_leaves_costs_no_attempt(cluster: Cluster, server: EmbeddedValkey) -> None:
    prompts = [range(first, first + 100) for first in range(100, 106)]  # which go to several workers first
    expected = [(await cluster.acme.generate(tokens_request(prompt))).completions for prompt in prompts]
    with silent(server):
        for leaving in cluster.workers[:2]:
            await leaving.drain(5.0)
        for tenant, prompt, right in zip([cluster.acme, cluster.globex] * 3, prompts, expected, strict=True):
            answer = await tenant.generate(tokens_request(prompt))
            assert answer.completions == right
            assert (answer.route.worker_id, answer.route.attempts) == ("worker-2", 1)


async def test_a_request_that_goes_on_elsewhere_minds_no_key_that_was_revoked_meanwhile(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers believe no router that has long missed it; this one has not."""
    monkeypatch.setattr(rpc_purge, "REVOKED_AFTER_S", 0.0)
    async with running_cluster(server.urls, tmp_path, [{"digest_step_s": 0.02}] * 2) as cluster:
        made = await cluster.tenant_admin.CreateApiKey(
            admin_pb2.CreateApiKeyRequest(tenant="acme"), timeout=10.0, metadata=ADMIN_METADATA
        )
        running = asyncio.create_task(cluster.acme.generate(tokens_request(range(100, 200), max_tokens=300)))
        await eventually(lambda: any(host.thread.num_open for host in cluster.workers))
        await cluster.tenant_admin.RevokeApiKey(
            admin_pb2.RevokeApiKeyRequest(key_id=made.key.key_id), timeout=10.0, metadata=ADMIN_METADATA
        )
        await cluster.quotas_are_in_force()
        leaving = next(host for host in cluster.workers if host.thread.num_open)
        order = admin_pb2.DrainWorkerRequest(worker_id=leaving.record().worker_id, grace_duration=Duration())
        drained = await cluster.cluster_admin.DrainWorker(order, timeout=60.0, metadata=ADMIN_METADATA)
        assert drained.handed_over_requests == 1
        assert (await running).usage.completion_tokens == 300


async def test_all_are_never_drained(cluster: Cluster, server: EmbeddedValkey) -> None:
    """Not at once, and not one after the other while the registry shows those that have left."""

    async def drained(worker_id: str) -> bool:
        order = admin_pb2.DrainWorkerRequest(worker_id=worker_id, grace_duration=Duration())
        try:
            await cluster.cluster_admin.DrainWorker(order, timeout=60.0, metadata=ADMIN_METADATA)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return False
        return True

    with silent(server):
        names = [host.record().worker_id for host in cluster.workers]
        assert sum(await asyncio.gather(*map(drained, names))) <= 2
        for name in names:
            await drained(name)
        left = [host for host in cluster.workers if not host.has_retired]
        assert len(left) == 1
        answer = await cluster.globex.generate(tokens_request(range(100, 200)))
        assert answer.route.worker_id == left[0].record().worker_id
