"""Blocks with a time to live: gone when nobody used them for so long, and never sooner."""

from __future__ import annotations

import pytest

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain
from cache_store.events import BlockChange
from cache_store.prefix_tree import Block
from cache_store.tiers import Granted
from cache_store.tokens import pack, part
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.outcomes import make_outcome

BLOCK = 4
ACME, GLOBEX = make_domain("acme"), make_domain("globex")


class Store:
    """A pool, and requests that run to their end in it."""

    def __init__(self, num_blocks: int = 16) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(one_group(BLOCK), num_blocks, self.clock)

    def request(self, tokens: range, ttl_s: float = float("inf"), domain: Domain = ACME) -> None:
        """Matches, computes the rest, stores it, ends."""
        self.pool.release(self.hold(tokens, domain), make_outcome(ttl_s=ttl_s))
        self.pool.check_invariants()

    def hold(self, tokens: range, domain: Domain = ACME) -> tuple[Block, ...]:
        packed = pack(tokens)
        match = self.pool.match_and_pin(domain, packed, len(tokens) // BLOCK * BLOCK)
        if match.partial is not None:
            self.pool.release((match.partial.source,))
        start = len(match.blocks)
        granted = self.pool.allocate(domain, len(tokens) // BLOCK - start)
        assert isinstance(granted, Granted)
        parent = match.blocks[-1] if match.blocks else None
        new = self.pool.commit(domain, parent, granted.blocks, part(packed, start * BLOCK, len(tokens)))
        return (*match.blocks, *new)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.pool.expire()
        self.pool.check_invariants()

    def match(self, tokens: range, domain: Domain = ACME) -> int:
        return self.pool.match_length(domain, pack(tokens), len(tokens))


@pytest.fixture
def store() -> Store:
    return Store()


def test_unused_for_its_time_a_block_is_gone_and_its_slot_free(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    store.pool.drain_events()
    store.pass_time(9.5)
    assert store.match(range(12)) == 12
    store.pass_time(0.5)
    assert store.pool.num_used == 0
    assert [event.change for event in store.pool.drain_events()] == [BlockChange.REMOVED]
    assert store.match(range(12)) == 0


def test_a_match_does_not_wait_for_anybody_to_look_at_the_time(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    store.clock.advance(10)
    assert store.match(range(12)) == 0


def test_a_use_begins_the_time_again(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    store.pass_time(9)
    store.request(range(12), ttl_s=10)
    store.pass_time(9)
    assert store.match(range(12)) == 12
    store.pass_time(1)
    assert store.match(range(12)) == 0


def test_looking_is_no_use(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    store.pass_time(9)
    match = store.pool.match_and_pin(ACME, pack(range(12)), 12)
    store.pool.release(match.pinned)
    assert store.match(range(12)) == 12
    store.pass_time(1)
    assert store.match(range(12)) == 0
    store.pool.check_invariants()


def test_a_use_without_a_time_to_live_keeps_what_it_used(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    store.request(range(8))
    store.pass_time(100)
    assert store.match(range(12)) == 8


def test_what_still_lives_keeps_the_blocks_before_it(store: Store) -> None:
    """A block without those before it could not be matched."""
    store.request(range(12), ttl_s=100)
    store.request(range(8), ttl_s=10)
    store.pass_time(50)
    assert store.match(range(12)) == 12
    store.pass_time(50)
    assert store.pool.num_used == 0


def test_held_blocks_stay_and_go_once_they_are_let_go(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    match = store.pool.match_and_pin(ACME, pack(range(12)), 12)
    store.pass_time(50)
    assert store.match(range(12)) == 12
    store.pool.release(match.pinned)
    store.pass_time(0)
    assert store.pool.num_used == 0


def test_branches_go_by_their_own_time(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    other = range(0, 24, 2)
    store.request(other, ttl_s=20)
    store.pass_time(10)
    assert (store.match(range(12)), store.match(other)) == (1, 12)
    store.pass_time(10)
    assert store.pool.num_used == 0


def test_one_tenants_time_to_live_is_not_anothers(store: Store) -> None:
    store.request(range(12), ttl_s=10)
    store.request(range(12), domain=GLOBEX)
    store.pass_time(10)
    assert store.match(range(12)) == 0
    assert store.match(range(12), GLOBEX) == 12


def test_many_uses_of_a_long_lived_block_leave_little_behind(store: Store) -> None:
    for _ in range(5_000):
        store.pool.release(store.hold(range(8)), make_outcome(ttl_s=1e6))
    (account,) = store.pool._accounts.values()
    assert len(account.expiries) <= 512
