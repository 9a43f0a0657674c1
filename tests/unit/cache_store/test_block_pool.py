"""The pool by examples; the state machine in tests/property covers sequences of them."""

from __future__ import annotations

import pytest

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.events import BlockChange
from cache_store.prefix_tree import Block
from cache_store.tiers import Granted, Short
from cache_store.tokens import PackedTokens, pack, part
from tests.support.domains import make_domain
from tests.support.geometry import one_group, two_groups
from tests.support.outcomes import make_outcome

BLOCK = 4
ACME = make_domain("acme")
GLOBEX = make_domain("globex")


def store(pool: BlockPool, domain: Domain, tokens: PackedTokens) -> tuple[Block, ...]:
    """What a request does: match, allocate the rest, commit each full block. Returns the held blocks."""
    length = len(tokens) // 4
    match = pool.match_and_pin(domain, tokens, length)
    held = list(match.blocks)
    if match.partial:
        pool.release((match.partial.source,))
    granted = pool.allocate(domain, length // BLOCK - len(held))
    assert isinstance(granted, Granted)
    rest = part(tokens, len(held) * BLOCK, (len(held) + len(granted.blocks)) * BLOCK)
    held += pool.commit(domain, held[-1] if held else None, granted.blocks, rest)
    pool.check_invariants()
    return tuple(held)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(one_group(BLOCK), 8, ManualClock())


def test_the_same_domain_hits_and_another_misses(pool: BlockPool) -> None:
    tokens = pack(range(12))
    pool.release(store(pool, ACME, tokens))
    assert pool.match_length(ACME, tokens, 12) == 12
    assert pool.match_length(GLOBEX, tokens, 12) == 0
    assert pool.match_length(make_domain("acme", partition="p"), tokens, 12) == 0
    assert pool.match_length(make_domain("acme", epoch="e2"), tokens, 12) == 0


def test_the_limit_holds_the_last_token_back(pool: BlockPool) -> None:
    tokens = pack(range(8))
    pool.release(store(pool, ACME, tokens))
    match = pool.match_and_pin(ACME, tokens, 7)
    assert len(match.blocks) == 1
    assert match.partial is not None
    assert match.partial.num_tokens == 3
    pool.release(match.pinned)
    pool.check_invariants()


def test_a_partial_match_takes_the_longest_run_among_the_children(pool: BlockPool) -> None:
    for tail in ([50, 51, 52, 53], [50, 51, 60, 61], [70, 71, 72, 73]):
        pool.release(store(pool, ACME, pack([0, 1, 2, 3, *tail])))
    match = pool.match_and_pin(ACME, pack([0, 1, 2, 3, 50, 51, 60, 99, 5]), 8)
    assert match.partial is not None
    assert match.partial.num_tokens == 3
    assert match.partial.source.tokens == pack([50, 51, 60, 61])
    pool.release(match.pinned)


def test_pinned_blocks_are_not_evicted(pool: BlockPool) -> None:
    tokens = pack(range(16))
    pool.release(store(pool, ACME, tokens))
    match = pool.match_and_pin(ACME, tokens, 16)
    granted = pool.allocate(GLOBEX, 4)
    assert isinstance(granted, Granted)
    assert pool.allocate(GLOBEX, 1) == Short(0)
    assert pool.match_length(ACME, tokens, 16) == 16
    pool.release(match.pinned)
    pool.release(granted.blocks)
    pool.check_invariants()


def test_short_changes_nothing(pool: BlockPool) -> None:
    pool.release(store(pool, ACME, pack(range(16))))
    before = pool.snapshot()
    assert pool.allocate(GLOBEX, 9) == Short(8)
    assert pool.snapshot() == before


def test_the_tail_goes_first_and_the_oldest_request_before_the_newest(pool: BlockPool) -> None:
    old, new = pack(range(16)), pack(range(100, 116))
    pool.release(store(pool, ACME, old))
    pool.release(store(pool, ACME, new))
    granted = pool.allocate(ACME, 3)
    assert isinstance(granted, Granted)
    assert pool.match_length(ACME, old, 16) == 4
    assert pool.match_length(ACME, new, 16) == 16
    pool.release(granted.blocks)


def test_a_hit_makes_recent(pool: BlockPool) -> None:
    old, new = pack(range(16)), pack(range(100, 116))
    pool.release(store(pool, ACME, old))
    pool.release(store(pool, ACME, new))
    pool.release(pool.match_and_pin(ACME, old, 16).pinned, make_outcome())
    granted = pool.allocate(ACME, 4)
    assert isinstance(granted, Granted)
    assert pool.match_length(ACME, old, 16) == 16
    assert pool.match_length(ACME, new, 16) == 0
    pool.release(granted.blocks)


def test_a_second_writer_of_equal_blocks_gets_the_standing_ones(pool: BlockPool) -> None:
    first = store(pool, ACME, pack(range(4)))
    granted = pool.allocate(ACME, 1)
    assert isinstance(granted, Granted)
    (standing,) = pool.commit(ACME, None, granted.blocks, pack(range(4)))
    assert standing is first[0]
    assert pool.num_held == 1
    pool.release((standing,))
    pool.release(first)
    pool.check_invariants()


def test_slots_that_change_domain_are_scrubbed_and_others_not(pool: BlockPool) -> None:
    pool.release(store(pool, ACME, pack(range(32))))
    same = pool.allocate(ACME, 2)
    other = pool.allocate(GLOBEX, 2)
    assert isinstance(same, Granted)
    assert isinstance(other, Granted)
    assert same.scrubs == ()
    assert {slot for _, slot in other.scrubs} == {block.slots[0] for block in other.blocks}


def test_every_group_has_its_own_slots() -> None:
    pool = BlockPool(two_groups(BLOCK), 4, ManualClock())
    held = store(pool, ACME, pack(range(8)))
    assert all(len(block.slots) == 2 for block in held)
    pool.release(held)
    granted = pool.allocate(GLOBEX, 4)
    assert isinstance(granted, Granted)
    assert len(granted.scrubs) == 4


def test_events_replay_to_the_snapshot(pool: BlockPool) -> None:
    for start in range(0, 60, 10):
        pool.release(store(pool, ACME if start % 20 else GLOBEX, pack(range(start, start + 12))))
    mirror: dict[bytes, list[bytes]] = {}
    for number, event in enumerate(pool.drain_events()):
        assert event.sequence_number == number
        digests = [event.digests[i : i + 16] for i in range(0, len(event.digests), 16)]
        held = mirror.setdefault(event.domain_tag, [])
        for digest in digests:
            if event.change is BlockChange.STORED:
                held.append(digest)
            else:
                held.remove(digest)
    snapshot = pool.snapshot()
    assert {tag: set(held) for tag, held in mirror.items() if held} == {
        tag: {packed[i : i + 16] for i in range(0, len(packed), 16)} for tag, packed in snapshot.items()
    }
    assert pool.drain_events() == ()


def test_stored_digests_are_those_a_router_computes(pool: BlockPool) -> None:
    tokens = pack(range(12))
    store(pool, ACME, tokens)
    (event,) = pool.drain_events()
    assert event.domain_tag == ACME.tag
    assert event.digests == b"".join(chain(ACME, tokens, BLOCK))


def test_a_constant_hash_changes_no_match() -> None:
    pool = BlockPool(one_group(BLOCK), 8, ManualClock(), hasher=lambda _: bytes(16))
    pool.release(store(pool, ACME, pack([1, 2, 3, 4, 5, 6, 7, 8])))
    pool.release(store(pool, ACME, pack([9, 9, 9, 9, 5, 6, 7, 8])))
    assert pool.match_length(ACME, pack([1, 2, 3, 4, 5, 6, 7, 8]), 8) == 8
    assert pool.match_length(ACME, pack([7, 7, 7, 7, 5, 6, 7, 8]), 8) == 0
    pool.check_invariants()


def test_releasing_twice_is_caught(pool: BlockPool) -> None:
    held = store(pool, ACME, pack(range(4)))
    pool.release(held)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(held)


def test_a_shared_block_is_never_committed(pool: BlockPool) -> None:
    granted = pool.allocate(ACME, 1)
    assert isinstance(granted, Granted)
    pool.pin(granted.blocks)
    with pytest.raises(AssertionError, match="shared before its commit"):
        pool.commit(ACME, None, granted.blocks, pack(range(4)))


def test_a_use_makes_recent_also_while_a_pin_holds_the_blocks(pool: BlockPool) -> None:
    old, new = pack(range(16)), pack(range(100, 116))
    pool.release(store(pool, ACME, old), make_outcome())
    pin = pool.match_and_pin(ACME, old, 16).pinned
    pool.release(store(pool, ACME, new), make_outcome())
    pool.release(pool.match_and_pin(ACME, old, 16).pinned, make_outcome())
    pool.release(pin)
    granted = pool.allocate(ACME, 4)
    assert isinstance(granted, Granted)
    assert pool.match_length(ACME, old, 16) == 16
    assert pool.match_length(ACME, new, 16) == 0
