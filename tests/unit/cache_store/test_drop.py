"""Dropping domains of a pool by examples; the state machine in tests/property covers sequences of them."""

from __future__ import annotations

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain
from cache_store.events import BlockChange
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable, TierShare
from cache_store.scrubs import BYTES_PER_PLAN, MAX_BLOCKS_PER_PLAN, NUM_PLANS, Dropped, Scrubs
from cache_store.tier_kind import TierSizes
from cache_store.tiers import Granted
from cache_store.tokens import PackedTokens, pack
from tests.support.domains import make_domain
from tests.support.geometry import one_group, two_groups
from tests.support.quotas import make_quota

BLOCK = 4
ACME = make_domain("acme")
ACME_PARTITION = make_domain("acme", partition="p")
GLOBEX = make_domain("globex")
PROMPT = pack(range(12))


def pool_of(num_blocks: int = 8) -> BlockPool:
    return BlockPool(one_group(BLOCK), num_blocks, ManualClock())


def store(pool: BlockPool, domain: Domain, tokens: PackedTokens = PROMPT) -> tuple[Block, ...]:
    """Returns the blocks, held."""
    granted = pool.allocate(domain, len(tokens) // 4 // BLOCK)
    assert isinstance(granted, Granted)
    return tuple(pool.commit(domain, None, granted.blocks, tokens))


def slots(blocks: tuple[Block, ...]) -> set[tuple[int, int]]:
    return {slot for block in blocks for slot in enumerate(block.slots)}


def drop(pool: BlockPool, *domains: Domain) -> Dropped:
    dropped = pool.drop(domains, {domain.tenant for domain in domains})
    pool.check_invariants()
    return dropped


def test_a_dropped_domain_misses_and_others_hit() -> None:
    pool = pool_of(9)
    for domain in (ACME, ACME_PARTITION, GLOBEX):
        pool.release(store(pool, domain))
    assert drop(pool, ACME) == Dropped(device_blocks=3)
    assert pool.match_length(ACME, PROMPT, 12) == 0
    assert pool.match_length(ACME_PARTITION, PROMPT, 12) == 12
    assert pool.match_length(GLOBEX, PROMPT, 12) == 12
    assert pool.num_used == 6


def test_the_slots_of_what_nobody_holds_are_scrubbed_once_a_part_at_a_time() -> None:
    pool = BlockPool(two_groups(BLOCK), 8, ManualClock())
    blocks = store(pool, ACME)
    pool.release(blocks)
    drop(pool, ACME)
    first = pool.scrubs.drain(2)
    assert len(first) == 4
    assert len(pool.scrubs)
    assert {*first, *pool.scrubs.drain(100)} == slots(blocks)
    assert not len(pool.scrubs)
    granted = pool.allocate(GLOBEX, 8)
    assert isinstance(granted, Granted)
    assert granted.scrubs == (), "they hold nobody's bytes"


def test_with_one_plan_no_more_is_scrubbed_than_a_step_can_bear() -> None:
    assert Scrubs(bytes_per_block=BYTES_PER_PLAN // 8, num_blocks=100).num_per_plan == 8
    assert Scrubs(bytes_per_block=2 * BYTES_PER_PLAN, num_blocks=100).num_per_plan == 1
    assert Scrubs(bytes_per_block=BYTES_PER_PLAN, num_blocks=100 * NUM_PLANS).num_per_plan == 100
    assert Scrubs(bytes_per_block=1, num_blocks=10_000_000).num_per_plan == MAX_BLOCKS_PER_PLAN


def test_what_is_given_away_before_it_is_scrubbed_is_scrubbed_by_whoever_gets_it() -> None:
    for domain in (GLOBEX, ACME):  # the dropped domain itself has no right to its old bytes either
        pool = pool_of(3)
        blocks = store(pool, ACME)
        pool.release(blocks)
        drop(pool, ACME)
        granted = pool.allocate(domain, 3)
        assert isinstance(granted, Granted)
        assert set(granted.scrubs) == slots(blocks)
        assert pool.scrubs.drain(100) == ()
        pool.check_invariants()


def test_held_blocks_stay_with_their_holders_and_are_scrubbed_when_the_last_one_lets_go() -> None:
    pool = pool_of()
    blocks = store(pool, ACME)
    pool.pin(blocks[:2])
    assert drop(pool, ACME) == Dropped(device_blocks=3, held_blocks=3)
    assert pool.match_length(ACME, PROMPT, 12) == 0
    assert (pool.num_held, pool.num_used) == (3, 3)
    pool.release(blocks)
    pool.check_invariants()
    assert set(pool.scrubs.drain(100)) == slots(blocks[2:])
    pool.release(blocks[:2])
    pool.check_invariants()
    assert set(pool.scrubs.drain(100)) == slots(blocks[:2])
    assert pool.num_used == 0


def test_what_a_request_was_given_and_has_not_stored_is_counted_and_scrubbed_too() -> None:
    pool = pool_of()
    granted = pool.allocate(ACME, 2)
    assert isinstance(granted, Granted)
    assert drop(pool, ACME) == Dropped(device_blocks=2, held_blocks=2)
    more = pool.allocate(ACME, 1)
    assert isinstance(more, Granted)
    pool.release((*granted.blocks, *more.blocks))
    pool.check_invariants()
    assert set(pool.scrubs.drain(100)) == slots((*granted.blocks, *more.blocks))


def test_what_the_tenant_had_in_slots_that_nobody_uses_is_scrubbed_too() -> None:
    pool = pool_of()
    granted = pool.allocate(ACME, 2)
    assert isinstance(granted, Granted)
    pool.release(granted.blocks)  # never stored, or evicted: what was written there is there still
    others = pool.allocate(GLOBEX, 3)
    assert isinstance(others, Granted)
    pool.release(others.blocks)
    assert drop(pool, ACME) == Dropped()
    assert set(pool.scrubs.drain(100)) == slots(granted.blocks) - slots(others.blocks)
    assert drop(pool, GLOBEX) == Dropped()
    assert set(pool.scrubs.drain(100)) == slots(others.blocks)


def test_one_event_tells_that_a_domain_is_gone_and_none_where_there_was_nothing() -> None:
    pool = pool_of()
    pool.release(store(pool, ACME))
    pool.drain_events()
    drop(pool, ACME)
    (event,) = pool.drain_events()
    assert (event.domain_tag, event.change, event.digests) == (ACME.tag, BlockChange.CLEARED, b"")
    drop(pool, ACME)
    assert pool.drain_events() == ()


def test_a_dropped_domain_can_be_filled_again() -> None:
    pool = pool_of()
    pool.release(store(pool, ACME))
    held = store(pool, ACME, pack(range(100, 108)))
    drop(pool, ACME)
    pool.release(store(pool, ACME))
    assert pool.match_length(ACME, PROMPT, 12) == 12
    pool.release(held)
    pool.check_invariants()
    assert pool.match_length(ACME, PROMPT, 12) == 12
    assert set(pool.scrubs.drain(100)) == slots(held)


def test_a_deleted_tenant_is_known_until_its_last_block_and_its_guarantee_have_gone() -> None:
    pool = BlockPool(one_group(BLOCK), 8, ManualClock(), sizes=TierSizes(4, 4))
    guaranteed = {ACME.tenant: make_quota(TierShare(0.25)), GLOBEX.tenant: make_quota(TierShare(0.25))}
    pool.set_quotas(QuotaTable(1, guaranteed))
    held = store(pool, ACME)
    drop(pool, ACME)
    pool.close(ACME.tenant)
    assert [use.tenant for use in pool.usage()] == [ACME.tenant, GLOBEX.tenant]
    pool.release(held)
    pool.check_invariants()
    assert pool.usage()[0].guaranteed_blocks == 2
    pool.set_quotas(QuotaTable(2, {GLOBEX.tenant: guaranteed[GLOBEX.tenant]}))
    pool.check_invariants()
    assert [use.tenant for use in pool.usage()] == [GLOBEX.tenant]
    assert pool.allocate(GLOBEX, 8) is not None
    pool.check_invariants()
