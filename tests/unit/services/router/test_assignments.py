"""What a report lacks: the books agree with a count of all requests, whatever happens in whatever order."""

from __future__ import annotations

import dataclasses
import random

import pytest

from cache_store.clock import ManualClock
from cache_store.index import Incarnation
from services.router.assignments import REPORT_LAG_S, Assignment, Assignments, Pending
from tests.support.worker_records import IDLE

A = Incarnation("a")


def counted(mine: list[Assignment], now_s: float, reported_requests: int, queued: int) -> Pending:
    """By looking at each request."""
    recent = [each for each in mine if each.sent_s > now_s - REPORT_LAG_S and each.prefill_tokens]
    return Pending(
        max(len(recent), len(mine) - reported_requests),
        max(sum(each.prefill_tokens for each in recent), sum(each.prefill_tokens for each in mine) - queued),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_books_agree_with_a_count(seed: int) -> None:
    rng, clock = random.Random(seed), ManualClock()
    assignments, mine = Assignments(clock), []
    for _ in range(200):
        match rng.randrange(4):
            case 0 | 1:
                mine.append(assignments.add(A, rng.randrange(100)))
            case 2 if mine:
                rng.choice(mine).first_token(clock.monotonic_s())
            case 3 if mine:
                each = mine.pop(rng.randrange(len(mine)))
                each.end(clock.monotonic_s())
                each.end(clock.monotonic_s())
        clock.advance(rng.choice((0.0, 0.1, REPORT_LAG_S)))
        running, queued = rng.randrange(3), rng.randrange(200)
        report = dataclasses.replace(IDLE, running_requests=running, queued_prefill_tokens=queued)
        if mine:
            assert assignments.pending(A, report) == counted(mine, clock.monotonic_s(), running, queued)


def test_a_worker_that_is_gone_has_nothing_and_its_requests_may_still_end() -> None:
    clock = ManualClock()
    assignments = Assignments(clock)
    each = assignments.add(A, 50)
    assignments.forget(A)
    each.first_token(clock.monotonic_s())
    each.end(clock.monotonic_s())
    assert assignments.pending(A, IDLE) == Pending(0, 0)
