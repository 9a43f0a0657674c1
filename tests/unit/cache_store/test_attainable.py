"""What a tenant could have of a pool if the others gave back what they borrowed."""

from __future__ import annotations

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from cache_store.tiers import Granted
from tests.support.domains import make_domain
from tests.support.geometry import one_group

ACME, GLOBEX = make_domain("acme"), make_domain("globex")


def _pool(minimum: float, maximum: float) -> BlockPool:
    """20 blocks; the quota is acme's."""
    pool = BlockPool(one_group(), 20, ManualClock())
    quota = TenantQuota({TierKind.DEVICE: TierShare(minimum, maximum)})
    pool.set_quotas(QuotaTable(1, {ACME.tenant: quota}))
    return pool


def _hold(pool: BlockPool, domain: Domain, num_blocks: int) -> None:
    assert isinstance(pool.allocate(domain, num_blocks), Granted)


def test_what_others_use_of_their_guarantee_is_out_of_reach() -> None:
    pool = _pool(0.5, 1.0)
    assert pool.attainable_blocks(GLOBEX) == 20
    _hold(pool, ACME, 4)
    assert pool.attainable_blocks(GLOBEX) == 16
    _hold(pool, ACME, 10)
    assert pool.attainable_blocks(GLOBEX) == 10
    assert pool.max_blocks(GLOBEX) == 20


def test_what_others_borrow_is_within_reach() -> None:
    pool = _pool(0.5, 1.0)
    _hold(pool, GLOBEX, 20)
    assert pool.num_available(ACME) == 0
    assert pool.attainable_blocks(ACME) == 20


def test_a_strict_tenants_part_is_its_own_used_or_not() -> None:
    pool = _pool(0.25, 0.25)
    assert pool.attainable_blocks(GLOBEX) == pool.max_blocks(GLOBEX) == 15
    assert pool.attainable_blocks(ACME) == pool.max_blocks(ACME) == 5


def test_use_of_one_tenant_is_its_part_of_the_usage() -> None:
    pool = _pool(0.5, 1.0)
    _hold(pool, ACME, 4)
    _hold(pool, GLOBEX, 13)
    assert {pool.use_of(ACME), pool.use_of(GLOBEX)} == set(pool.usage())
    assert pool.use_of(ACME).lent_blocks == 6
    assert pool.use_of(GLOBEX).lent_blocks == 0
