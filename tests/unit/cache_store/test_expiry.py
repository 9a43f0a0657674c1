"""Blocks with a time to live: gone when nobody used them for so long, and never sooner."""

from __future__ import annotations

import pytest

from cache_store.events import BlockChange
from cache_store.tokens import pack
from tests.support.outcomes import make_outcome
from tests.support.stored_prefixes import ACME, GLOBEX, StoredPrefixes


@pytest.fixture
def store() -> StoredPrefixes:
    return StoredPrefixes()


def test_unused_for_its_time_a_block_is_gone_and_its_slot_free(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    store.pool.drain_events()
    store.pass_time(9.5)
    assert store.match(range(12)) == 12
    store.pass_time(0.5)
    assert store.pool.num_used == 0
    assert [event.change for event in store.pool.drain_events()] == [BlockChange.REMOVED]
    assert store.match(range(12)) == 0


def test_a_match_does_not_wait_for_anybody_to_look_at_the_time(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    store.clock.advance(10)
    assert store.match(range(12)) == 0


def test_a_use_begins_the_time_again(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    store.pass_time(9)
    store.request(range(12), ttl_s=10)
    store.pass_time(9)
    assert store.match(range(12)) == 12
    store.pass_time(1)
    assert store.match(range(12)) == 0


def test_looking_is_no_use(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    store.pass_time(9)
    match = store.pool.match_and_pin(ACME, pack(range(12)), 12)
    store.pool.release(match.pinned)
    assert store.match(range(12)) == 12
    store.pass_time(1)
    assert store.match(range(12)) == 0
    store.pool.check_invariants()


def test_a_use_without_a_time_to_live_keeps_what_it_used(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    store.request(range(8))
    store.pass_time(100)
    assert store.match(range(12)) == 8


def test_what_still_lives_keeps_the_blocks_before_it(store: StoredPrefixes) -> None:
    """A block without those before it could not be matched."""
    store.request(range(12), ttl_s=100)
    store.request(range(8), ttl_s=10)
    store.pass_time(50)
    assert store.match(range(12)) == 12
    store.pass_time(50)
    assert store.pool.num_used == 0


def test_held_blocks_stay_and_go_once_they_are_let_go(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    match = store.pool.match_and_pin(ACME, pack(range(12)), 12)
    store.pass_time(50)
    assert store.match(range(12)) == 12
    store.pool.release(match.pinned)
    store.pass_time(0)
    assert store.pool.num_used == 0


def test_branches_go_by_their_own_time(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    other = range(0, 24, 2)
    store.request(other, ttl_s=20)
    store.pass_time(10)
    assert (store.match(range(12)), store.match(other)) == (1, 12)
    store.pass_time(10)
    assert store.pool.num_used == 0


def test_one_tenants_time_to_live_is_not_anothers(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    store.request(range(12), domain=GLOBEX)
    store.pass_time(10)
    assert store.match(range(12)) == 0
    assert store.match(range(12), GLOBEX) == 12


def test_anybodys_request_ends_what_is_overdue(store: StoredPrefixes) -> None:
    store.request(range(12), ttl_s=10)
    store.clock.advance(10)
    assert store.match(range(12), GLOBEX) == 0
    assert store.pool.num_used == 0


def test_many_uses_of_a_long_lived_block_leave_little_behind(store: StoredPrefixes) -> None:
    for _ in range(5_000):
        held = store.hold(range(8))
        assert held is not None
        store.pool.release(held, make_outcome(ttl_s=1e6))
    assert len(store.pool._evictions._expiries) <= 512
