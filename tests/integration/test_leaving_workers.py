"""Workers that leave while the registry says nothing of it: requests pass them by, and somebody always stays."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stemcache.admin.v1 import admin_pb2

from services.cluster.valkey import EmbeddedValkey
from tests.support.router_host import ADMIN_METADATA, Cluster, running_cluster, tokens_request


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
