"""Quotas at work in a pool, by examples."""

from __future__ import annotations

import pytest

from cache_store.account import Account
from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain, TenantId
from cache_store.lending import Need, charges
from cache_store.policies.lru import Lru
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable, TierShare
from cache_store.tiers import Granted, Short
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.outcomes import make_outcome
from tests.support.quotas import make_quota, make_table

BLOCK = 4
ACME, GLOBEX, INITECH = make_domain("acme"), make_domain("globex"), make_domain("initech")


def take(pool: BlockPool, domain: Domain, num_blocks: int) -> tuple[Block, ...]:
    """Blocks that are held and not in the tree."""
    granted = pool.allocate(domain, num_blocks)
    assert isinstance(granted, Granted)
    return granted.blocks


def fill(pool: BlockPool, domain: Domain, num_blocks: int, first_token: int = 0) -> None:
    """A request that leaves that many blocks behind."""
    blocks = take(pool, domain, num_blocks)
    tokens = pack(range(first_token, first_token + num_blocks * BLOCK))
    pool.release(pool.commit(domain, None, blocks, tokens), make_outcome())
    pool.check_invariants()


def used(pool: BlockPool) -> dict[str, int]:
    """Blocks by tenant."""
    return {each.tenant: each.used_blocks for each in pool.usage() if each.used_blocks}


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(one_group(BLOCK), 16, ManualClock())


def test_space_above_the_guarantees_is_lent_and_taken_back(pool: BlockPool) -> None:
    pool.set_quotas(make_table(acme=TierShare(0.5), globex=TierShare(0.25)))
    fill(pool, GLOBEX, 16)
    fill(pool, ACME, 8)
    assert used(pool) == {"acme": 8, "globex": 8}
    assert pool.pressure.lent_back_blocks == 8


def test_nobody_pays_out_of_its_guarantee(pool: BlockPool) -> None:
    pool.set_quotas(make_table(acme=TierShare(0.75)))
    fill(pool, ACME, 12)
    for number in range(4):
        fill(pool, GLOBEX, 4, 100 * number)
    assert used(pool) == {"acme": 12, "globex": 4}
    assert pool.num_available(GLOBEX) == 4


def test_what_is_lent_is_shared_by_weight(pool: BlockPool) -> None:
    quotas = {TenantId("acme"): make_quota(weight=3.0), TenantId("globex"): make_quota(weight=1.0)}
    pool.set_quotas(QuotaTable(1, quotas))
    for number in range(16):
        fill(pool, ACME, 1, 100 * number)
        fill(pool, GLOBEX, 1, 100 * number)
    assert used(pool) == {"acme": 12, "globex": 4}


def test_a_maximum_is_kept_while_the_pool_is_empty(pool: BlockPool) -> None:
    pool.set_quotas(make_table(acme=TierShare(0.0, 0.25)))
    fill(pool, ACME, 4)
    fill(pool, ACME, 3, 100)
    assert used(pool) == {"acme": 4}
    assert pool.allocate(ACME, 5) == Short(4)
    assert pool.max_blocks(ACME) == 4
    assert pool.max_blocks(GLOBEX) == 16


def test_a_lower_maximum_takes_effect_at_once_and_on_what_is_held_later(pool: BlockPool) -> None:
    fill(pool, ACME, 6)
    held = take(pool, ACME, 6)
    pool.set_quotas(make_table(acme=TierShare(0.0, 0.25)))
    assert used(pool) == {"acme": 6}
    pool.release(pool.commit(ACME, None, held, pack(range(100, 124))), make_outcome())
    assert used(pool) == {"acme": 4}


def test_a_strict_tenants_share_is_kept_free_for_it(pool: BlockPool) -> None:
    pool.set_quotas(make_table(acme=TierShare(0.5, 0.5)))
    fill(pool, GLOBEX, 8)
    assert pool.allocate(GLOBEX, 9) == Short(8)
    assert pool.num_available(ACME) == 8
    assert pool.max_blocks(GLOBEX) == 8


def test_a_new_strict_share_is_refilled_as_blocks_are_let_go(pool: BlockPool) -> None:
    held = take(pool, GLOBEX, 16)
    pool.set_quotas(make_table(acme=TierShare(0.5, 0.5)))
    assert pool.num_available(ACME) == 0
    pool.release(pool.commit(GLOBEX, None, held, pack(range(64))), make_outcome())
    assert used(pool) == {"globex": 8}
    assert pool.num_available(ACME) == 8
    pool.check_invariants()


def test_a_strict_share_is_refilled_by_those_with_the_largest_excess_for_their_weight(pool: BlockPool) -> None:
    weights = {TenantId("globex"): make_quota(weight=3.0), TenantId("initech"): make_quota(weight=1.0)}
    pool.set_quotas(QuotaTable(1, weights))
    fill(pool, GLOBEX, 9)
    fill(pool, INITECH, 7)
    pool.set_quotas(QuotaTable(2, {**weights, TenantId("acme"): make_quota(TierShare(0.25, 0.25))}))
    assert used(pool) == {"globex": 9, "initech": 3}


def test_a_charge_levels_the_excesses() -> None:
    accounts = [
        _account(name, cached, weight) for name, cached, weight in (("a", 9, 1.0), ("b", 7, 1.0), ("c", 8, 2.0))
    ]
    due = {each.payer.tenant: each.num_blocks for each in charges(6, accounts, None)}
    assert due == {"a": 4, "b": 2}


def test_the_asking_tenants_request_counts_as_its_own_excess() -> None:
    asking, other = _account("a", 4, 1.0), _account("b", 8, 1.0)
    due = {each.payer.tenant: each.num_blocks for each in charges(6, [asking, other], Need(asking, 6))}
    assert due == {"a": 4, "b": 2}


def _account(name: str, num_cached: int, weight: float) -> Account:
    account = Account(TenantId(name), Lru())
    account.num_cached = num_cached
    account.weight = weight
    return account


def evictions(pool: BlockPool) -> dict[str, tuple[int, int, int]]:
    """Blocks that were evicted, for others, and of others for it."""
    return {each.tenant: (each.evicted_blocks, each.evicted_for_others, each.caused_evictions) for each in pool.usage()}


def test_who_caused_an_eviction_and_who_suffered_it_is_told(pool: BlockPool) -> None:
    pool.set_quotas(make_table(acme=TierShare(0.5)))
    fill(pool, GLOBEX, 16)
    fill(pool, ACME, 6)
    fill(pool, GLOBEX, 10, 1_000)
    assert evictions(pool) == {"acme": (0, 0, 6), "globex": (16, 6, 0)}


def test_what_a_tenant_evicts_of_its_own_nobody_else_caused(pool: BlockPool) -> None:
    pool.set_quotas(make_table(acme=TierShare(0.0, 0.25)))
    fill(pool, ACME, 4)
    fill(pool, ACME, 4, 1_000)
    assert evictions(pool) == {"acme": (4, 0, 0)}


def test_what_strict_tenants_get_back_they_caused(pool: BlockPool) -> None:
    fill(pool, GLOBEX, 16)
    pool.set_quotas(make_table(acme=TierShare(0.25, 0.25), initech=TierShare(0.125, 0.125)))
    found = evictions(pool)
    assert found["globex"] == (6, 6, 0)
    assert (found["acme"], found["initech"]) == ((0, 0, 4), (0, 0, 2))
