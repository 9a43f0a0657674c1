"""What quotas come to in a pool: blocks, tokens and conversations of each tenant. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache_store.domain import TenantId
from cache_store.planning.pool import Load, requests_that_fit
from cache_store.quota import QuotaTable, TenantQuota, check_sum
from cache_store.tier_kind import TierKind


@dataclass(frozen=True, slots=True)
class TenantPart:
    """One tenant's part of one worker's pool."""

    tenant: str
    guaranteed_blocks: int
    max_blocks: int
    """Also of what others do not use."""
    max_pinned_blocks: int
    guaranteed_tokens: int
    guaranteed_requests: int
    """Of the planned context, within the guarantee."""
    max_requests: int


def tenant_parts(
    quotas: Mapping[str, TenantQuota], load: Load, num_blocks: int, block_size: int
) -> tuple[TenantPart, ...]:
    """Raises PreconditionError where the guarantees exceed the pool."""
    check_sum(quotas.values())
    table = QuotaTable(0, {TenantId(name): quota for name, quota in quotas.items()})
    return tuple(_part(table, name, load, num_blocks, block_size) for name in quotas)


def _part(table: QuotaTable, name: str, load: Load, num_blocks: int, block_size: int) -> TenantPart:
    quota, part = table.of(TenantId(name)), table.part(TenantId(name), TierKind.DEVICE)
    guaranteed = quota.share(TierKind.DEVICE).guaranteed_blocks(num_blocks)
    most = part.max_blocks(num_blocks)
    return TenantPart(
        tenant=name,
        guaranteed_blocks=guaranteed,
        max_blocks=most,
        max_pinned_blocks=quota.max_pinned_blocks(num_blocks),
        guaranteed_tokens=guaranteed * block_size,
        guaranteed_requests=requests_that_fit(load, block_size, guaranteed),
        max_requests=requests_that_fit(load, block_size, most),
    )
