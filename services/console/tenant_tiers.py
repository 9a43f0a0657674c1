"""Who has which part of which tier, out of a status and the tenants' terms. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.client.admin_results import ClusterStatus, Tenant, TenantUse, TierShare, WorkerStatus
from services.console.cluster_view import TierPart, TierUse

DEVICE, HOST, DISK = "device", "host", "disk"


@dataclass(frozen=True, slots=True)
class UseByTenant:
    """One tenant over all workers."""

    name: str
    tiers: tuple[TierPart, ...]
    waiting_requests: int
    evicted_blocks: int


def worker_tiers(worker: WorkerStatus) -> tuple[TierUse, ...]:
    """Its tiers, from the device downwards."""
    device = TierUse(DEVICE, worker.used_blocks, worker.total_blocks)
    return (device, *(TierUse(each.tier, each.used_blocks, each.total_blocks) for each in worker.tiers))


def tenant_tiers(status: ClusterStatus, tenants: Iterable[Tenant]) -> list[UseByTenant]:
    """All that live or still have blocks; those with most blocks first."""
    terms = {each.name: each for each in tenants}
    uses: dict[str, dict[str, TenantUse]] = {name: {} for name in terms}
    for worker in status.workers:
        for use in worker.tenants:
            uses.setdefault(use.tenant, {})[worker.worker_id] = use
    rows = [_tenant(name, by_worker, terms.get(name), status.workers) for name, by_worker in uses.items()]
    return sorted(rows, key=lambda row: (-sum(each.used_blocks for each in row.tiers), row.name))


def _tenant(
    name: str, uses: dict[str, TenantUse], terms: Tenant | None, workers: tuple[WorkerStatus, ...]
) -> UseByTenant:
    below = [tier for tier in (HOST, DISK) if any(each.tier == tier for worker in workers for each in worker.tiers)]
    return UseByTenant(
        name=name,
        tiers=(_device(uses, terms, workers), *(_lower(tier, uses, terms, workers) for tier in below)),
        waiting_requests=sum(use.waiting_requests for use in uses.values()),
        evicted_blocks=sum(use.evicted_blocks for use in uses.values()),
    )


def _device(uses: dict[str, TenantUse], terms: Tenant | None, workers: tuple[WorkerStatus, ...]) -> TierPart:
    share = _share(terms, DEVICE)
    guaranteed = most = 0
    for worker in workers:
        use = uses.get(worker.worker_id)
        guaranteed += use.guaranteed_blocks if use else int(share.min_in_force * worker.total_blocks)
        most += use.max_blocks if use else int(share.max * worker.total_blocks)
    return TierPart(
        tier=DEVICE,
        guaranteed_blocks=guaranteed,
        max_blocks=most,
        used_blocks=sum(use.used_blocks for use in uses.values()),
        held_blocks=sum(use.held_blocks for use in uses.values()),
        pinned_blocks=sum(use.pinned_blocks for use in uses.values()),
        lent_blocks=sum(use.lent_blocks for use in uses.values()),
    )


def _lower(tier: str, uses: dict[str, TenantUse], terms: Tenant | None, workers: tuple[WorkerStatus, ...]) -> TierPart:
    share = _share(terms, tier)
    sizes = [each.total_blocks for worker in workers for each in worker.tiers if each.tier == tier]
    return TierPart(
        tier=tier,
        guaranteed_blocks=sum(int(share.min_in_force * size) for size in sizes),
        max_blocks=sum(int(share.max * size) for size in sizes),
        used_blocks=sum(use.host_blocks if tier == HOST else use.disk_blocks for use in uses.values()),
        held_blocks=0,
        pinned_blocks=0,
        lent_blocks=None,
    )


def _share(terms: Tenant | None, tier: str) -> TierShare:
    """A lower tier that is not named has the device's; a tenant that does not live is guaranteed nothing."""
    shares = {each.tier: each for each in terms.quota.tiers} if terms else {}
    return shares.get(tier) or shares.get(DEVICE) or TierShare(tier, 0.0, 0.0, 0.0)
