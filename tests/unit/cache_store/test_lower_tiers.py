"""Tiers below the device: what goes down, what is found there, what goes first, what goes along."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from cache_store.events import BlockChange
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.scrubs import MAX_BLOCKS_PER_PLAN
from cache_store.tier_kind import TierKind, TierSizes
from cache_store.tokens import pack
from cache_store.transfers import NO_MOVES
from tests.support.block_mirror import BlockMirror
from tests.support.stored_prefixes import ACME, BLOCK, GLOBEX
from tests.support.tiered_prefixes import TieredPrefixes

CHAT = tuple(range(16))
"""Four blocks, as many as the device has."""
OTHER = tuple(range(100, 116))
THIRD = tuple(range(200, 216))


def test_what_the_device_evicts_is_found_in_the_hosts_memory_by_its_own_domain_only() -> None:
    tiers = TieredPrefixes()
    tiers.request(CHAT)
    tiers.request(OTHER)
    tiers.move()
    assert tiers.below(CHAT) == ["host"] * 4
    assert tiers.below(CHAT, GLOBEX) == []


def test_only_equal_tokens_are_found() -> None:
    tiers = TieredPrefixes()
    tiers.request(CHAT)
    tiers.request(OTHER)
    tiers.move()
    assert tiers.below((*CHAT[:7], 99, *CHAT[8:])) == ["host"]


def test_a_block_is_not_found_before_the_plan_that_stores_it_has_run() -> None:
    tiers = TieredPrefixes()
    tiers.request(CHAT)
    tiers.request(OTHER)
    assert tiers.below(CHAT) == []
    moves = tiers.lower.drain()
    assert len(moves.stores) == 4
    assert tiers.below(CHAT) == []
    tiers.lower.end_moves(moves, ok=True)
    assert tiers.below(CHAT) == ["host"] * 4


def test_nothing_of_a_failed_plan_is_used_and_its_slots_are_overwritten() -> None:
    tiers = TieredPrefixes()
    tiers.request(CHAT)
    tiers.request(OTHER)
    moves = tiers.lower.drain()
    tiers.lower.end_moves(moves, ok=False)
    tiers.pool.check_invariants()
    assert tiers.below(CHAT) == []
    assert set(tiers.move().host_scrubs) == {store.host_slot for store in moves.stores}
    assert tiers.lower.loads()[0].failed_blocks == 4


def test_what_the_host_evicts_is_found_on_disk_once_it_is_written() -> None:
    tiers = TieredPrefixes(num_disk=8)
    for tokens in (CHAT, OTHER, THIRD):
        tiers.request(tokens)
        spills = tiers.move().spills
    assert len(spills) == 4
    assert tiers.below(CHAT) == []
    tiers.end(spills)
    assert tiers.below(CHAT) == ["disk"] * 4
    assert tiers.below(CHAT, GLOBEX) == []
    assert tiers.below(OTHER) == ["host"] * 4


def test_a_write_that_failed_is_a_miss() -> None:
    tiers = TieredPrefixes(num_disk=8)
    for tokens in (CHAT, OTHER, THIRD):
        tiers.request(tokens)
        spills = tiers.move().spills
    tiers.end(spills[:1])  # the first block of the prompt
    tiers.end(spills[1:], ok=False)
    assert tiers.below(CHAT) == ["disk"]
    assert tiers.lower.loads()[1].failed_blocks == 3


def test_what_comes_back_leaves_a_copy_that_is_not_written_again() -> None:
    tiers = TieredPrefixes(num_host=8)
    tiers.request(CHAT)
    tiers.request(OTHER)
    tiers.move()
    tiers.request(CHAT)  # loaded; OTHER goes down
    assert len(tiers.move().stores) == 4
    tiers.request(OTHER)
    assert tiers.move() is NO_MOVES
    assert tiers.below(CHAT) == ["host"] * 4
    assert tiers.lower.loads()[0].loaded_blocks == 8


def test_copies_go_first() -> None:
    tiers = TieredPrefixes(num_host=8)
    tiers.request(CHAT)
    tiers.request(OTHER)
    tiers.move()
    tiers.request(CHAT)
    tiers.move()  # the host has OTHER, and copies of CHAT
    tiers.request((*CHAT[:12], *range(300, 304)))  # CHAT's last block goes down and keeps its copy's place
    tiers.request(THIRD)
    tiers.move()
    assert tiers.below(OTHER) == ["host"] * 3, "one of its blocks made room, no copy was left"
    assert len(tiers.below(CHAT)) == 4


def test_what_is_refused_takes_along_what_hangs_below() -> None:
    tiers = TieredPrefixes(num_device=3, num_host=2)
    tiers.request(CHAT[:12])
    tiers.request(OTHER[:8])  # CHAT's last two blocks go down
    tiers.move()
    tokens = pack(CHAT[:12])
    match = tiers.pool.match_and_pin(ACME, tokens, 12)
    sources = tiers.find(tokens, ACME, match.blocks)
    assert [str(source.tier) for source in sources] == ["host", "host"]
    tiers.lower.hold(sources)  # nothing can make room for its first block
    tiers.pool.release(match.blocks)
    tiers.request(OTHER[:12])
    tiers.move()
    assert tiers.below(CHAT[:12]) == []
    assert tiers.lower.loads()[0].used_blocks == 2, "what is read keeps its place until the end"
    tiers.lower.let_go(sources)
    tiers.pool.check_invariants()
    assert tiers.lower.loads()[0].used_blocks == 0


def test_what_is_never_used_again_is_not_written() -> None:
    tiers = TieredPrefixes()
    tiers.request(CHAT, session_end=True)
    tiers.request(OTHER)
    assert tiers.move() is NO_MOVES
    assert tiers.below(CHAT) == []
    assert tiers.lower.loads()[0].dropped_blocks == 4


def test_the_least_recent_goes_first() -> None:
    tiers = TieredPrefixes(num_host=8)
    for tokens in (CHAT, OTHER, THIRD, range(300, 312)):
        tiers.request(tokens)
        tiers.move()
    assert tiers.below(CHAT) == ["host"], "the beginning of a prompt is the last to go"
    assert tiers.below(OTHER) == ["host"] * 4


def test_a_guarantee_holds_in_the_hosts_memory_too() -> None:
    tiers = TieredPrefixes(num_host=8)
    half = TenantQuota(MappingProxyType({TierKind.HOST: TierShare(0.5)}))
    tiers.pool.set_quotas(QuotaTable(1, MappingProxyType({ACME.tenant: half})))
    tiers.request(CHAT)
    for start in range(1_000, 1_160, 16):
        tiers.request(range(start, start + 16), GLOBEX)
        tiers.move()
    assert tiers.below(CHAT) == ["host"] * 4
    assert tiers.lower.used_by(ACME.tenant) == (4, 0)
    assert tiers.lower.used_by(GLOBEX.tenant) == (4, 0)
    assert {use.tenant: use.host_blocks for use in tiers.pool.usage()} == {ACME.tenant: 4, GLOBEX.tenant: 4}
    assert tiers.pool.use_of(ACME) in tiers.pool.usage()


def test_what_is_over_its_time_is_found_nowhere() -> None:
    tiers = TieredPrefixes(num_disk=8)
    tiers.request(CHAT, ttl_s=10)
    tiers.request(OTHER)
    tiers.settle()
    assert tiers.below(CHAT) == ["host"] * 4
    tiers.clock.advance(11)
    tiers.pool.expire()
    tiers.pool.check_invariants()
    assert tiers.below(CHAT) == []


def test_a_block_that_was_lost_takes_along_what_hangs_below() -> None:
    tiers = TieredPrefixes()
    tiers.request(CHAT)
    tiers.request(OTHER)
    tiers.move()
    sources = tiers.find(pack(CHAT))
    tiers.lower.hold(sources)
    tiers.lower.let_go(sources)
    tiers.lower.lose(sources[1])
    tiers.lower.lose(sources[3])
    tiers.pool.check_invariants()
    assert tiers.below(CHAT) == ["host"]
    assert tiers.lower.loads()[0].failed_blocks == 2


def test_a_dropped_domain_is_found_in_no_tier_and_all_its_bytes_are_overwritten() -> None:
    tiers = TieredPrefixes(num_disk=4)
    for tokens in (CHAT, OTHER, THIRD, range(300, 316)):
        tiers.request(tokens)
        tiers.settle()
    tiers.request(CHAT[:8], GLOBEX)
    tiers.settle()
    dropped = tiers.pool.drop((ACME,), (ACME.tenant,))
    tiers.pool.check_invariants()
    assert (dropped.device_blocks, dropped.host_blocks, dropped.disk_blocks) == (2, 4, 4)
    assert all(tiers.below(tokens) == [] for tokens in (CHAT, OTHER, THIRD))
    moves = tiers.settle()
    assert sorted(moves.host_scrubs) == [0, 1, 2, 3]
    assert moves.forgotten_domains == (ACME.root,)
    assert tiers.pool.match_length(GLOBEX, pack(CHAT[:8]), 8) == 8


def test_what_is_read_when_its_domain_is_dropped_is_overwritten_afterwards() -> None:
    tiers = TieredPrefixes()
    tiers.request(CHAT)
    tiers.request(OTHER[:4])
    tiers.move()
    match = tiers.pool.match_and_pin(ACME, pack(CHAT), 16)
    sources = tiers.find(pack(CHAT), ACME, match.blocks)
    slots = tuple(source.host_slot for source in sources)
    assert len(slots) == 1
    tiers.lower.hold(sources)
    tiers.pool.drop((ACME,), (ACME.tenant,))
    assert tiers.move() is NO_MOVES
    tiers.lower.let_go(sources)
    assert tiers.move().host_scrubs == slots


def test_an_index_hears_of_a_block_when_it_has_left_all_tiers() -> None:
    tiers = TieredPrefixes(num_host=4)
    mirror = BlockMirror()
    for tokens in (CHAT, OTHER, CHAT, THIRD, range(300, 316), OTHER):
        tiers.request(tokens)
        tiers.move()
        mirror.apply(tiers.pool.drain_events())
        mirror.assert_equals(tiers.pool.snapshot())
    assert len(mirror.blocks[ACME.tag]) == 8


def test_going_down_and_coming_back_is_no_event() -> None:
    tiers = TieredPrefixes(num_host=8)
    tiers.request(CHAT)
    tiers.request(OTHER)
    tiers.move()
    assert [event.change for event in tiers.pool.drain_events()] == [BlockChange.STORED]
    tiers.request(CHAT)
    assert tiers.pool.drain_events() == ()


def test_without_lower_tiers_there_are_none() -> None:
    with pytest.raises(ValueError, match="needs a host tier"):
        TierSizes(0, 4)
    with pytest.raises(ValueError, match="negative"):
        TierSizes(-1, 0)


def test_nothing_is_kept_of_a_deleted_tenant() -> None:
    tiers = TieredPrefixes(num_disk=4)
    for tokens in (CHAT, OTHER, THIRD):
        tiers.request(tokens)
        tiers.settle()
    tiers.pool.drop((ACME,), (ACME.tenant,))
    tiers.pool.close(ACME.tenant)
    tiers.pool.check_invariants()
    assert tiers.lower.used_by(ACME.tenant) == (0, 0)
    assert not [each for each in tiers.pool.usage() if each.tenant == ACME.tenant]
    for tokens in (CHAT, OTHER, THIRD):  # its id is not used again; if it were, it would start afresh
        tiers.request(tokens)
        tiers.settle()
    assert tiers.below(CHAT) == ["disk"] * 4


def test_a_plan_scrubs_no_more_than_a_step_can_bear() -> None:
    num_blocks = 2 * MAX_BLOCKS_PER_PLAN
    tiers = TieredPrefixes(num_device=num_blocks, num_host=num_blocks)
    tiers.request(range(num_blocks * BLOCK))
    tiers.request(range(num_blocks * BLOCK, 2 * num_blocks * BLOCK))
    tiers.move()
    tiers.pool.drop((ACME,), (ACME.tenant,))
    plans = []
    while tiers.lower.has_moves:
        plans.append(tiers.move().host_scrubs)
    assert sorted(slot for plan in plans for slot in plan) == list(range(num_blocks))
    assert [len(plan) for plan in plans] == [MAX_BLOCKS_PER_PLAN] * 2
