"""Prefixes on their way: whom they count for, until when, and bounds."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from cache_store.clock import ManualClock
from cache_store.domain import DomainTag, TenantId
from cache_store.index import Incarnation
from services.router.speculations import LIFETIME_S, SETTLED_S, Speculation, Speculations

TAG, OTHER = DomainTag(b"a" * 16), DomainTag(b"b" * 16)
ACME, GLOBEX = TenantId("acme"), TenantId("globex")
ONE, TWO = Incarnation("1" * 32), Incarnation("2" * 32)


def chain(*numbers: int) -> bytes:
    """Digests that follow one another."""
    return b"".join(bytes(numbers[: depth + 1]).ljust(16, b"-") for depth in range(len(numbers)))


def test_leading_blocks_count_for_their_domain_and_worker_only() -> None:
    speculations = Speculations(ManualClock())
    speculations.add(ACME, TAG, ONE, chain(1, 2, 3), 0.0)
    assert speculations.leading(TAG, ONE, chain(1, 2, 3, 4)) == 3
    assert speculations.leading(TAG, ONE, chain(1, 2, 9)) == 2
    assert speculations.leading(TAG, ONE, chain(9, 2)) == 0
    assert speculations.leading(OTHER, ONE, chain(1, 2, 3)) == 0
    assert speculations.leading(TAG, TWO, chain(1, 2, 3)) == 0
    assert speculations.leading(TAG, ONE, b"") == 0


def test_an_entry_ends_some_time_after_the_worker_should_have_computed_it() -> None:
    clock = ManualClock()
    speculations = Speculations(clock)
    speculations.add(ACME, TAG, ONE, chain(1, 2), 5.0)
    speculations.add(ACME, TAG, ONE, chain(1), 7.0)
    clock.advance(5.0 + LIFETIME_S - 0.01)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 2
    clock.advance(0.02)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 1
    clock.advance(2.0)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 0
    speculations.check_invariants()


def test_after_the_first_token_an_entry_counts_for_a_moment_only() -> None:
    clock = ManualClock()
    speculations = Speculations(clock)
    first = speculations.add(ACME, TAG, ONE, chain(1, 2), 5.0)
    speculations.add(ACME, TAG, ONE, chain(1), 5.0)
    speculations.settle(first)
    speculations.settle(first)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 2
    clock.advance(SETTLED_S + 0.01)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 1
    speculations.check_invariants()


def test_what_a_worker_did_not_take_is_withdrawn() -> None:
    speculations = Speculations(ManualClock())
    entry = speculations.add(ACME, TAG, ONE, chain(1, 2), 0.0)
    speculations.withdraw(entry)
    speculations.withdraw(entry)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 0
    speculations.check_invariants()


def test_what_a_worker_has_computed_is_not_withdrawn() -> None:
    clock = ManualClock()
    speculations = Speculations(clock)
    entry = speculations.add(ACME, TAG, ONE, chain(1, 2), 0.0)
    speculations.settle(entry)
    speculations.withdraw(entry)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 2
    clock.advance(SETTLED_S + 0.01)
    assert speculations.leading(TAG, ONE, chain(1, 2)) == 0
    speculations.check_invariants()


def test_what_is_on_its_way_follows_what_is_held() -> None:
    speculations = Speculations(ManualClock())
    whole = chain(1, 2, 3, 4)
    speculations.add(ACME, TAG, ONE, whole[32:], 0.0)
    assert speculations.leading(TAG, ONE, whole, 2) == 4
    assert speculations.leading(TAG, ONE, whole[:48], 2) == 3
    assert speculations.leading(TAG, ONE, whole, 3) == 4
    assert speculations.leading(TAG, ONE, whole, 4) == 4
    assert speculations.leading(TAG, ONE, whole, 1) == 1, "the second block is neither there nor on its way"
    assert speculations.leading(TAG, TWO, whole, 2) == 2


def test_they_are_bounded() -> None:
    speculations = Speculations(ManualClock(), max_blocks=5)
    for number in range(10):
        speculations.add(ACME, TAG, ONE, chain(number, 1), 0.0)
        speculations.check_invariants()
    assert speculations.leading(TAG, ONE, chain(9, 1)) == 2
    assert speculations.leading(TAG, ONE, chain(0, 1)) == 0


def test_what_was_withdrawn_leaves_nothing_behind() -> None:
    clock = ManualClock()
    speculations = Speculations(clock)
    for _ in range(1_000):
        entry = speculations.add(ACME, TAG, ONE, chain(1, 2), 3_600.0)
        speculations.withdraw(entry)
        speculations.check_invariants()
    assert sum(isinstance(each, Speculation) for each in gc.get_objects()) == 1


def test_who_has_most_makes_room_for_others() -> None:
    speculations = Speculations(ManualClock(), max_blocks=10)
    speculations.add(ACME, TAG, ONE, chain(1, 2, 3), 0.0)
    for number in range(10):
        speculations.add(GLOBEX, OTHER, ONE, chain(number, 1), 0.0)
        speculations.check_invariants()
    assert speculations.leading(TAG, ONE, chain(1, 2, 3)) == 3
    assert speculations.leading(OTHER, ONE, chain(9, 1)) == 2
    assert speculations.leading(OTHER, ONE, chain(0, 1)) == 0


@given(st.data())
def test_the_books_agree_whatever_comes(data: st.DataObject) -> None:
    clock = ManualClock()
    speculations = Speculations(clock, max_blocks=12)
    added: list[Speculation] = []
    chains = st.lists(st.integers(0, 1), max_size=5).map(lambda numbers: chain(*numbers))
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["add", "settle", "withdraw", "wait"])):
            case "add":
                place = (data.draw(st.sampled_from([TAG, OTHER])), data.draw(st.sampled_from([ONE, TWO])))
                tenant = ACME if place[0] == TAG else GLOBEX
                added.append(speculations.add(tenant, *place, data.draw(chains), data.draw(st.floats(0, 20))))
            case "settle" if added:
                speculations.settle(data.draw(st.sampled_from(added)))
            case "withdraw" if added:
                speculations.withdraw(data.draw(st.sampled_from(added)))
            case _:
                clock.advance(data.draw(st.floats(0, 15)))
        speculations.check_invariants()
