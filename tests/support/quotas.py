"""Quota tables for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType

from hypothesis import strategies as st

from cache_store.domain import TenantId
from cache_store.fence import Fence, FenceTable
from cache_store.quota import DEFAULT_SHARE, QuotaTable, TenantQuota, TierShare
from cache_store.quota_document import Published, QuotaDocument, write_published
from cache_store.tier_kind import TierKind


def make_quota(share: TierShare = DEFAULT_SHARE, weight: float = 1.0) -> TenantQuota:
    """A quota of the device's pool."""
    return TenantQuota(MappingProxyType({TierKind.DEVICE: share}), weight)


def make_table(**shares: TierShare) -> QuotaTable:
    """Quotas by tenant."""
    return QuotaTable(1, MappingProxyType({TenantId(name): make_quota(share) for name, share in shares.items()}))


def quota_document(
    key: bytes, store_id: str, quotas: QuotaTable, publish_s: float, fences: Iterable[Fence] = ()
) -> QuotaDocument:
    """As a router publishes it."""
    table = FenceTable(quotas.generation, MappingProxyType({fence.tenant: fence for fence in fences}))
    return write_published(key, store_id, Published(quotas, table), publish_s)


@st.composite
def quota_tables(draw: st.DrawFn, tenants: Sequence[str]) -> QuotaTable:
    """Any valid quotas of some of the tenants, in eighths of the pool."""
    left = 8
    quotas = {}
    for tenant in tenants:
        kind = draw(st.sampled_from(["none", "guaranteed", "strict", "bounded", "weighted"]))
        if kind == "none":
            continue
        minimum = draw(st.integers(0, left)) if kind != "weighted" else 0
        if kind == "strict":
            minimum = max(minimum, min(1, left))
        maximum = minimum if kind == "strict" else draw(st.integers(max(1, minimum), 8)) if kind == "bounded" else 8
        if maximum == 0:
            continue
        left -= minimum
        weight = draw(st.sampled_from([0.5, 1.0, 3.0]))
        quotas[TenantId(tenant)] = make_quota(TierShare(minimum / 8, maximum / 8), weight)
    return QuotaTable(draw(st.integers(1, 9)), MappingProxyType(quotas))
