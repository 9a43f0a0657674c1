"""How much of what its guarantee would give a tenant is left to it beside others.

Isolation ratio = hit tokens with the others / hit tokens alone in a pool of the guaranteed size, in windows of time;
the worst one counts. 1 is a wall; above it the tenant gains from what it borrows. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cache_store.quota import DEFAULT_QUOTA
from cache_store.replay.simulation import ReplayOptions, ReplayResult, TenantCounts, TraceTenant, replay
from cache_store.tier_kind import TierKind, TierSizes

MIN_WINDOW_SHARE = 0.01
"""A window counts where it has that part of the tenant's hits alone: a ratio of a few tokens says nothing."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """One tenant's ratio."""

    tenant: str
    overall: float
    worst: float
    worst_window: int
    """Counted from 0."""
    alone_hit_rate: float


def isolation(tenants: Sequence[TraceTenant], result: ReplayResult, options: ReplayOptions) -> list[Isolation]:
    """Ratios of all tenants that have a guarantee and hit something alone with it."""
    ratios = []
    end_s = max((each.trace.requests[-1].at_s for each in tenants if each.trace.requests), default=0.0)
    for tenant in tenants:
        guaranteed = tenant.quota.share(TierKind.DEVICE).guaranteed_blocks(options.num_blocks)
        if guaranteed < 1:
            continue
        alone = _alone(tenant, replace(options, num_blocks=guaranteed, sizes=_guaranteed(tenant, options)), end_s)
        if alone.hit_tokens:
            ratios.append(_ratio(tenant.name, result.tenants[tenant.name], alone))
    return ratios


def _guaranteed(tenant: TraceTenant, options: ReplayOptions) -> TierSizes:
    host = tenant.quota.share(TierKind.HOST).guaranteed_blocks(options.sizes.num_host_blocks)
    disk = tenant.quota.share(TierKind.DISK).guaranteed_blocks(options.sizes.num_disk_blocks)
    return TierSizes(host, disk if host else 0)


def _alone(tenant: TraceTenant, options: ReplayOptions, end_s: float) -> TenantCounts:
    """Its counts in a pool of its own, in the same windows of time."""
    return replay([replace(tenant, quota=DEFAULT_QUOTA)], options, end_s).tenants[tenant.name]


def _ratio(name: str, beside: TenantCounts, alone: TenantCounts) -> Isolation:
    least = MIN_WINDOW_SHARE * alone.hit_tokens
    windows = [
        (with_others / by_itself, window)
        for window, (with_others, by_itself) in enumerate(
            zip(beside.window_hit_tokens, alone.window_hit_tokens, strict=True)
        )
        if by_itself > 0 and by_itself >= least
    ]
    worst, window = min(windows)
    return Isolation(name, beside.hit_tokens / alone.hit_tokens, worst, window, alone.hit_rate)
