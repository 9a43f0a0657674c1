"""Statuses and terms of tenants with the numbers that a test cares about, and what an operator sees of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stemcache.admin.v1 import admin_pb2 as pb

from services.client import admin_messages
from services.client.admin_results import ClusterStatus, Tenant, TenantUse, TrafficStatus, WorkerStatus

EVIL = "<img src=x onerror=alert(1)>[bold red]x[/] [@click=app.quit]q[/]\x1b[31m\n"
"""A name with something for every kind of screen."""


def tenant(name: str, min_share: float = 0.0, max_share: float = 1.0, **lower: tuple[float, float]) -> Tenant:
    """Terms; `lower`: shares of lower tiers by name."""
    shares = {"device": (min_share, max_share)} | lower
    tiers = [pb.TierShare(tier=each, min=low, max=high, min_in_force=low) for each, (low, high) in shares.items()]
    return admin_messages.tenant_of(pb.Tenant(name=name, quota=pb.TenantQuota(tiers=tiers, weight=1.0)))


def use(name: str, **numbers: int) -> TenantUse:
    """Blocks of a tenant on one worker."""
    message = pb.TenantUse(tenant=name, **numbers)
    return admin_messages.status_of(pb.GetStatusResponse(workers=[pb.Worker(tenants=[message])])).workers[0].tenants[0]


def worker(worker_id: str = "worker-0", uses: tuple[TenantUse, ...] = (), **fields: Any) -> WorkerStatus:
    """A worker of 100 blocks."""
    values = {"incarnation": f"life-of-{worker_id}", "total_blocks": 100, "max_num_sequences": 8} | fields
    message = pb.Worker(worker_id=worker_id, **values)
    status = admin_messages.status_of(pb.GetStatusResponse(workers=[message])).workers[0]
    return replace(status, tenants=uses)


def status(*workers: WorkerStatus, traffic: tuple[TrafficStatus, ...] = (), **fields: Any) -> ClusterStatus:
    """A status."""
    empty = admin_messages.status_of(pb.GetStatusResponse(version="9.9"))
    return replace(empty, workers=workers, traffic=traffic, **fields)


def traffic(name: str, requests: int, prompt: int, cached: int) -> TrafficStatus:
    """What a tenant asked and found, all of it on the device."""
    return TrafficStatus(name, requests, prompt, cached, 0, 0, 0)
