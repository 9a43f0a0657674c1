"""A tenant's part of a pool: routers and pools round it alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import TenantId
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from tests.support.domains import make_domain
from tests.support.geometry import one_group

PARTS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 1_000), st.booleans()), min_size=1, max_size=3)


def quota(minimum: float, maximum: float) -> TenantQuota:
    return TenantQuota({TierKind.DEVICE: TierShare(minimum, maximum)})


@given(PARTS, st.integers(1, 5_000))
def test_a_router_knows_what_a_pool_grants(parts: list[tuple[int, int, bool]], num_blocks: int) -> None:
    quotas = {}
    for at, (minimum, more, is_strict) in enumerate(parts):
        least = max(1, minimum) / 1_000 if is_strict else minimum / 1_000
        most = least if is_strict else max(0.001, min(1.0, least + more / 1_000))
        quotas[TenantId(f"tenant-{at}")] = quota(least, most)
    table = QuotaTable(1, quotas)
    pool = BlockPool(one_group(), num_blocks, ManualClock())
    pool.set_quotas(table)
    for tenant in (*quotas, TenantId("without")):
        domain = make_domain(tenant)
        assert table.part(tenant, TierKind.DEVICE).max_blocks(num_blocks) == pool.max_blocks(domain)
