"""The quotas that are in force, of the table's: all of them, but for guarantees that a tier has no room for.

A change is refused where guarantees would exceed a tier, so this happens only where two stores were joined that had
each promised the same room. Then the guarantees that were set last give way: each is lowered to what those set before
it leave. Nothing in the table changes for it, every router finds the same, and it ends by itself when there is room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from cache_store.domain import TenantId
from cache_store.quota import ROUNDING, QuotaTable, TenantQuota
from cache_store.tier_kind import TierKind
from services.tenants.model import Tenant
from services.tenants.state import ControlState
from services.tenants.table import ControlTable


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A guarantee that is not in force as it was set."""

    tenant_name: str
    tier: TierKind
    minimum: float
    """As it was set."""
    in_force: float


def quotas_in_force(state: ControlState) -> QuotaTable:
    """The quotas of all tenants that have one, such that the guarantees of each tier fit into it."""
    quotas = {tenant.id: tenant.quota for tenant in _by_age(state.table)}
    for tier in TierKind:
        for tenant_id, minimum in _fitted(state.table, tier).items():
            quotas[tenant_id] = _with_minimum(quotas[tenant_id], tier, minimum)
    return QuotaTable(state.generation, MappingProxyType(quotas))


def shortfalls(table: ControlTable) -> tuple[Shortfall, ...]:
    """Guarantees that are not in force as they were set, oldest first; of lower tiers where the device's differ."""
    of_device = _fitted(table, TierKind.DEVICE)
    return tuple(
        Shortfall(tenant.name, tier, tenant.quota.share(tier).minimum, fitted[tenant.id])
        for tier in TierKind
        for fitted in (_fitted(table, tier),)
        for tenant in _by_age(table)
        if tenant.id in fitted and (tier is TierKind.DEVICE or fitted[tenant.id] != of_device.get(tenant.id))
    )


def _by_age(table: ControlTable) -> list[Tenant]:
    """Tenants whose quota was ever set, the oldest quota first."""
    known = (tenant for tenant in table.tenants.values() if tenant.quota_number)
    return sorted(known, key=lambda tenant: (tenant.quota_unix_s, tenant.id))


def _fitted(table: ControlTable, tier: TierKind) -> dict[TenantId, float]:
    """Guarantees that have to be lowered, and to what."""
    lowered: dict[TenantId, float] = {}
    free = 1.0
    for tenant in _by_age(table):
        minimum = tenant.quota.share(tier).minimum
        if minimum > free + ROUNDING:
            lowered[tenant.id] = free
        free = max(0.0, free - minimum)
    return lowered


def _with_minimum(quota: TenantQuota, tier: TierKind, minimum: float) -> TenantQuota:
    share = replace(quota.share(tier), minimum=minimum)
    return replace(quota, shares=MappingProxyType({**quota.shares, tier: share}))
