"""Whether to fetch or to compute: by what the tenant measured, with hysteresis, and never for long in vain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cache_store.clock import ManualClock
from cache_store.domain import TenantId
from cache_store.index import Incarnation
from worker.fetch_cost import (
    MAX_PEERS,
    MAX_TENANTS,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    PROBE_BLOCKS,
    RETRY_EVERY,
    FetchCost,
)

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
PEER, OTHER = Incarnation("p"), Incarnation("o")
BLOCK_SIZE = 16

Noting = Callable[[FetchCost, TenantId], None]


def cost(tokens_per_s: float = 1_600.0) -> tuple[FetchCost, ManualClock]:
    """Ten milliseconds to compute a block, by default."""
    clock = ManualClock()
    return FetchCost(lambda: tokens_per_s, BLOCK_SIZE, clock), clock


def test_what_was_never_measured_is_tried() -> None:
    assert cost()[0].num_worthwhile(ACME, PEER, 100) == 100
    assert cost(0.0)[0].num_worthwhile(ACME, PEER, 100) == 100


def test_the_faster_way_is_taken() -> None:
    fetching, _ = cost()
    fetching.note(ACME, PEER, 100, 0.005, 0.1)
    assert fetching.num_worthwhile(ACME, PEER, 50) == 50
    fetching.note(ACME, OTHER, 100, 0.005, 2.0)
    assert fetching.num_worthwhile(ACME, OTHER, 50) == 0


def test_few_blocks_are_not_worth_an_opening() -> None:
    fetching, _ = cost()
    fetching.note(ACME, PEER, 100, 0.05, 0.1)
    assert fetching.num_worthwhile(ACME, PEER, 4) == 0
    assert fetching.num_worthwhile(ACME, PEER, 40) == 40


def test_what_was_declined_has_to_be_clearly_faster() -> None:
    fetching, _ = cost()
    fetching.note(ACME, PEER, 1, 0.0, 0.0085)
    assert fetching.num_worthwhile(ACME, PEER, 10) == 10, "it was never declined"
    fetching.note(ACME, PEER, 1, 0.0, 0.0200)
    assert fetching.num_worthwhile(ACME, PEER, 10) == 0
    for _ in range(3):
        fetching.note(ACME, PEER, 1, 0.0, 0.0070)
    assert fetching.num_worthwhile(ACME, PEER, 10) == 0, "hardly faster, after it was declined"
    for _ in range(20):
        fetching.note(ACME, PEER, 1, 0.0, 0.0050)
    assert fetching.num_worthwhile(ACME, PEER, 10) == 10


def test_what_is_declined_is_tried_again_with_a_few_blocks() -> None:
    fetching, _ = cost()
    fetching.note(ACME, PEER, 1, 0.0, 1.0)
    tried = [fetching.num_worthwhile(ACME, PEER, 100) for _ in range(2 * RETRY_EVERY)]
    assert tried.count(PROBE_BLOCKS) == 2
    assert tried.count(0) == 2 * RETRY_EVERY - 2


def test_a_peer_that_failed_rests_longer_each_time() -> None:
    fetching, clock = cost()
    rests = []
    for _ in range(10):
        fetching.note_failure(ACME, PEER)
        waited_s = 0.0
        while fetching.num_worthwhile(ACME, PEER, 10) == 0:
            clock.advance(0.25)
            waited_s += 0.25
        rests.append(waited_s)
    assert rests[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(rests) == 30.0
    assert fetching.num_worthwhile(ACME, OTHER, 10) == 10
    fetching.note_success(ACME, PEER)
    fetching.note_failure(ACME, PEER)
    clock.advance(0.5)
    assert fetching.num_worthwhile(ACME, PEER, 10) == 10, "it has done well in between"


@pytest.mark.parametrize(
    ("num_blocks", "timeout_s"), [(1, MIN_TIMEOUT_S), (100, 1.0), (100_000, MAX_TIMEOUT_S)], ids=str
)
def test_a_fetch_may_take_as_long_as_computing(num_blocks: int, timeout_s: float) -> None:
    fetching, _ = cost()
    assert fetching.worth_s(num_blocks) == timeout_s
    fetching.note(ACME, PEER, 1, 0.0, 0.001)
    assert fetching.timeout_s(ACME, PEER, num_blocks) == timeout_s


def test_a_first_fetch_may_take_half_of_that() -> None:
    fetching, _ = cost()
    assert fetching.timeout_s(ACME, PEER, 100) == 0.5
    assert fetching.timeout_s(ACME, PEER, 1) == MIN_TIMEOUT_S
    fetching.note_failure(ACME, PEER)
    assert fetching.timeout_s(ACME, PEER, 100) == 0.5, "nothing was measured yet"


def test_an_answer_without_blocks_says_nothing_of_speed() -> None:
    fetching, _ = cost()
    fetching.note(ACME, PEER, 0, 5.0, 0.0)
    assert fetching.num_worthwhile(ACME, PEER, 10) == 10


def test_peers_that_were_not_asked_for_long_are_forgotten() -> None:
    fetching, _ = cost()
    for peer in (PEER, OTHER):
        fetching.note(ACME, peer, 1, 0.0, 9.0)
    for number in range(MAX_PEERS - 1):
        fetching.note(ACME, Incarnation(str(number)), 1, 0.0, 0.001)
        assert fetching.fetch_s(ACME, PEER, 1) == 9.0, "it is in use"
        fetching.check_invariants()
    assert fetching.fetch_s(ACME, OTHER, 1) is None
    assert fetching.num_remembered == MAX_PEERS


def test_no_number_of_peers_of_one_tenant_is_forgotten_for_another_one() -> None:
    fetching, _ = cost()
    fetching.note(ACME, PEER, 1, 0.0, 9.0)
    for number in range(3 * MAX_PEERS):
        fetching.note(GLOBEX, Incarnation(str(number)), 1, 0.0, 9.0)
    assert fetching.num_worthwhile(ACME, PEER, 10) == 0


def test_tenants_that_did_not_fetch_for_long_are_forgotten() -> None:
    fetching, _ = cost()
    for tenant in (ACME, GLOBEX):
        fetching.note(tenant, PEER, 1, 0.0, 9.0)
    for number in range(MAX_TENANTS - 1):
        fetching.note(TenantId(f"tenant-{number}"), PEER, 1, 0.0, 0.001)
        assert fetching.fetch_s(ACME, PEER, 1) == 9.0, "it is in use"
        fetching.check_invariants()
    assert fetching.fetch_s(GLOBEX, PEER, 1) is None
    assert fetching.num_remembered == MAX_TENANTS


def slow(fetching: FetchCost, tenant: TenantId) -> None:
    fetching.note(tenant, PEER, 10, 0.0, 10.0)


def late(fetching: FetchCost, tenant: TenantId) -> None:
    fetching.note_late(tenant, PEER, 5.0)


def failed(fetching: FetchCost, tenant: TenantId) -> None:
    fetching.note_failure(tenant, PEER)


def fast(fetching: FetchCost, tenant: TenantId) -> None:
    fetching.note(tenant, PEER, 10, 0.0, 0.001)
    fetching.note_success(tenant, PEER)


def decisions(fetching: FetchCost, clock: ManualClock) -> list[object]:
    """What ACME is told from now on."""
    told: list[object] = [fetching.timeout_s(ACME, PEER, 100), fetching.fetch_s(ACME, PEER, 100)]
    for num_blocks in (1, 10, 100, 1_000) * RETRY_EVERY:
        told.append(fetching.num_worthwhile(ACME, PEER, num_blocks))
        clock.advance(0.05)
    return told


@pytest.mark.parametrize("own", [None, slow, late, failed, fast])
@pytest.mark.parametrize("others", [slow, late, failed, fast])
def test_what_one_tenant_measures_decides_nothing_of_another_ones(own: Noting | None, others: Noting) -> None:
    """And what it measures itself does."""
    (alone, alone_clock), (beside, beside_clock) = cost(), cost()
    for fetching in (alone, beside):
        if own is not None:
            own(fetching, ACME)
    for _ in range(3):
        others(beside, GLOBEX)
        beside.num_worthwhile(GLOBEX, PEER, 10)
    told = decisions(beside, beside_clock)
    assert told == decisions(alone, alone_clock)
    if own is not None:
        assert told != decisions(*cost()), "it has learnt nothing of its own"


def test_who_is_late_with_a_few_blocks_is_still_asked_for_many() -> None:
    """It is at work: a small question keeps no large one away."""
    fetching, _ = cost()
    fetching.note_late(ACME, PEER, 0.05)
    assert fetching.num_worthwhile(ACME, PEER, 4) == 0
    assert fetching.num_worthwhile(ACME, PEER, 60) == 60
    fetching.note_late(ACME, OTHER, 0.0)
    assert fetching.num_worthwhile(ACME, OTHER, 1) == 1, "it had no place, which says nothing of its speed"
