"""Counters, prices and room in the queue, by examples."""

from __future__ import annotations

import random

import pytest

from cache_store.domain import TenantId
from worker.fairness import ServiceCounters
from worker.queue_limit import may_wait
from worker.step_cost import CLIP, StepCost

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def test_service_counts_by_weight() -> None:
    counters = ServiceCounters()
    counters.enter(A, [])
    counters.enter(B, [A])
    counters.charge(A, 4.0, weight=4.0)
    counters.charge(B, 4.0, weight=1.0)
    assert (counters.of(A), counters.of(B)) == (1.0, 4.0)


def test_who_was_idle_has_saved_nothing() -> None:
    counters = ServiceCounters()
    counters.enter(A, [])
    counters.charge(A, 100.0, 1.0)
    counters.enter(B, [A])
    assert counters.of(B) == 100.0


def test_nobodys_debt_is_forgiven() -> None:
    counters = ServiceCounters()
    counters.enter(A, [])
    counters.enter(B, [A])
    counters.charge(B, 50.0, 1.0)
    counters.enter(B, [A])
    assert counters.of(B) == 50.0


def test_who_comes_to_an_idle_worker_starts_where_the_last_one_stood() -> None:
    counters = ServiceCounters()
    counters.enter(A, [])
    counters.charge(A, 100.0, 1.0)
    counters.settle([A])
    counters.settle([])
    counters.charge(A, 20.0, 1.0)  # it goes on decoding
    counters.enter(B, [])
    assert counters.of(B) == 120.0


def test_the_level_never_falls() -> None:
    counters = ServiceCounters()
    counters.enter(A, [])
    counters.charge(A, 100.0, 1.0)
    counters.settle([A])
    counters.enter(B, [A])
    counters.settle([B])
    counters.enter(C, [])
    assert counters.of(C) == 100.0


def test_tenants_that_would_start_anew_are_forgotten() -> None:
    counters = ServiceCounters()
    for number in range(5_000):
        counters.enter(TenantId(f"t{number}"), [])
        counters.settle([])
    counters.enter(A, [])
    counters.charge(A, 10.0, 1.0)
    counters.settle([A])
    assert len(counters._counters) <= 1_100


@pytest.mark.parametrize("seed", range(5))
def test_prices_are_found_from_mixed_steps(seed: int) -> None:
    cost, chance = StepCost(), random.Random(seed)
    for _ in range(400):
        tokens, decodes = chance.choice([0, 0, 64, 256, 511]), chance.randint(0, 30)
        cost.add(tokens, decodes, (0.02 + 0.000_7 * tokens + 0.002 * decodes) * chance.uniform(0.95, 1.05))
    assert cost.token_s == pytest.approx(0.000_7, rel=0.1)
    assert cost.decode_s == pytest.approx(0.002, rel=0.25)
    assert cost.expected_s(256, 10) == pytest.approx(0.02 + 0.179_2 + 0.02, rel=0.1)


def test_prices_follow_a_machine_that_is_a_hundred_times_faster_than_the_start_values() -> None:
    cost = StepCost()
    for number in range(60):
        cost.add(256 * (number % 2), 8, 0.000_1 + 0.000_005 * 256 * (number % 2))
    assert cost.token_s == pytest.approx(0.000_005, rel=0.2)


def test_one_step_that_hangs_moves_the_prices_by_little() -> None:
    cost = StepCost()
    for number in range(100):
        cost.add(256 * (number % 2), 8, 0.02 + 0.000_5 * 256 * (number % 2))
    before = cost.expected_s(256, 8)
    cost.add(256, 8, 60.0)
    assert before < cost.expected_s(256, 8) < before * (1 + CLIP * 0.05)


def test_no_price_is_negative() -> None:
    cost = StepCost()
    for number in range(300):
        cost.add(100 + number % 3, 30 - number % 3, 0.05 - 0.01 * (number % 3))
        assert min(cost.token_s, cost.decode_s, cost.expected_s(0, 0)) >= 0


def test_a_step_without_time_says_nothing() -> None:
    cost, untouched = StepCost(), StepCost()
    cost.add(100, 1, 0.0)
    assert cost.expected_s(100, 1) == untouched.expected_s(100, 1)


def even(tenant: TenantId) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("tenant", "waiting", "expected"),
    [
        (A, {A: 7}, True),
        (A, {A: 8}, False),
        (B, {A: 8}, True),
        (B, {A: 8, B: 3}, True),
        (B, {A: 8, B: 4}, False),
        (A, {A: 8, B: 1}, False),
        (C, {A: 8, B: 4}, True),
        (C, {A: 8, B: 4, C: 2}, False),
    ],
)
def test_a_full_queue_takes_those_below_their_part(
    tenant: TenantId, waiting: dict[TenantId, int], expected: bool
) -> None:
    assert may_wait(tenant, waiting, even, 8) is expected


def test_parts_of_the_queue_are_by_weight() -> None:
    def weight(tenant: TenantId) -> float:
        return 3.0 if tenant == B else 1.0

    assert may_wait(B, {A: 8, B: 5}, weight, 8)
    assert not may_wait(B, {A: 8, B: 6}, weight, 8)


def test_everybody_may_have_one_request_wait() -> None:
    waiting = {TenantId(f"t{number}"): 1 for number in range(50)}
    assert may_wait(A, waiting, even, 8)
    assert not may_wait(A, {**waiting, A: 1}, even, 8)
