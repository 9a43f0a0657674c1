"""Whether to fetch or to compute: by measured speeds, with hysteresis, and never for much longer than computing."""

from __future__ import annotations

import pytest

from cache_store.clock import ManualClock
from cache_store.index import Incarnation
from worker.fetch_cost import MAX_PEERS, MAX_TIMEOUT_S, MIN_TIMEOUT_S, PROBE_BLOCKS, RETRY_EVERY, FetchCost

PEER, OTHER = Incarnation("p"), Incarnation("o")
BLOCK_SIZE = 16


def cost(tokens_per_s: float = 1_600.0) -> tuple[FetchCost, ManualClock]:
    """Ten milliseconds to compute a block, by default."""
    clock = ManualClock()
    return FetchCost(lambda: tokens_per_s, BLOCK_SIZE, clock), clock


def test_what_was_never_measured_is_tried() -> None:
    assert cost()[0].num_worthwhile(PEER, 100) == 100
    assert cost(0.0)[0].num_worthwhile(PEER, 100) == 100


def test_the_faster_way_is_taken() -> None:
    fetching, _ = cost()
    fetching.note(PEER, 100, 0.005, 0.1)
    assert fetching.num_worthwhile(PEER, 50) == 50
    fetching.note(OTHER, 100, 0.005, 2.0)
    assert fetching.num_worthwhile(OTHER, 50) == 0


def test_few_blocks_are_not_worth_an_opening() -> None:
    fetching, _ = cost()
    fetching.note(PEER, 100, 0.05, 0.1)
    assert fetching.num_worthwhile(PEER, 4) == 0
    assert fetching.num_worthwhile(PEER, 40) == 40


def test_what_was_declined_has_to_be_clearly_faster() -> None:
    fetching, _ = cost()
    fetching.note(PEER, 1, 0.0, 0.0085)
    assert fetching.num_worthwhile(PEER, 10) == 10, "it was never declined"
    fetching.note(PEER, 1, 0.0, 0.0200)
    assert fetching.num_worthwhile(PEER, 10) == 0
    for _ in range(3):
        fetching.note(PEER, 1, 0.0, 0.0070)
    assert fetching.num_worthwhile(PEER, 10) == 0, "hardly faster, after it was declined"
    for _ in range(20):
        fetching.note(PEER, 1, 0.0, 0.0050)
    assert fetching.num_worthwhile(PEER, 10) == 10


def test_what_is_declined_is_tried_again_with_a_few_blocks() -> None:
    fetching, _ = cost()
    fetching.note(PEER, 1, 0.0, 1.0)
    tried = [fetching.num_worthwhile(PEER, 100) for _ in range(2 * RETRY_EVERY)]
    assert tried.count(PROBE_BLOCKS) == 2
    assert tried.count(0) == 2 * RETRY_EVERY - 2


def test_a_peer_that_failed_rests_longer_each_time() -> None:
    fetching, clock = cost()
    rests = []
    for _ in range(10):
        fetching.note_failure(PEER)
        waited_s = 0.0
        while fetching.num_worthwhile(PEER, 10) == 0:
            clock.advance(0.25)
            waited_s += 0.25
        rests.append(waited_s)
    assert rests[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(rests) == 30.0
    assert fetching.num_worthwhile(OTHER, 10) == 10
    fetching.note_success(PEER)
    fetching.note_failure(PEER)
    clock.advance(0.5)
    assert fetching.num_worthwhile(PEER, 10) == 10, "it has done well in between"


@pytest.mark.parametrize(
    ("num_blocks", "timeout_s"), [(1, MIN_TIMEOUT_S), (100, 1.0), (100_000, MAX_TIMEOUT_S)], ids=str
)
def test_a_fetch_may_take_as_long_as_computing(num_blocks: int, timeout_s: float) -> None:
    assert cost()[0].timeout_s(num_blocks) == timeout_s


def test_an_answer_without_blocks_says_nothing_of_speed() -> None:
    fetching, _ = cost()
    fetching.note(PEER, 0, 5.0, 0.0)
    assert fetching.num_worthwhile(PEER, 10) == 10


def test_peers_that_were_not_asked_for_long_are_forgotten() -> None:
    fetching, _ = cost()
    fetching.note(PEER, 1, 0.0, 9.0)
    assert fetching.num_worthwhile(PEER, 10) == 0
    for number in range(MAX_PEERS):
        fetching.note(Incarnation(str(number)), 1, 0.0, 0.001)
    assert fetching.num_worthwhile(PEER, 10) == 10


def test_who_is_late_with_a_few_blocks_is_still_asked_for_many() -> None:
    """It is at work: one tenant's small question keeps nobody's large one away."""
    fetching, _ = cost()
    fetching.note_late(PEER, 0.05)
    assert fetching.num_worthwhile(PEER, 4) == 0
    assert fetching.num_worthwhile(PEER, 60) == 60
    fetching.note_late(OTHER, 0.0)
    assert fetching.num_worthwhile(OTHER, 1) == 1, "it had no place, which says nothing of its speed"
