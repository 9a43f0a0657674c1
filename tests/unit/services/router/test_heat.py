"""Heat of prefixes: it counts requests, fades, keeps domains apart and stays within its bound."""

from __future__ import annotations

import math

import pytest

from cache_store.clock import ManualClock
from cache_store.domain import DomainTag
from services.router.heat import FADE_S, PrefixHeat

A, B = DomainTag(b"a" * 16), DomainTag(b"b" * 16)
BLOCK, OTHER = b"x" * 16, b"y" * 16


def test_requests_of_one_prefix_add_up_and_fade() -> None:
    clock = ManualClock()
    heat = PrefixHeat(clock)
    assert [heat.note(A, BLOCK) for _ in range(3)] == [0.0, 1.0, 2.0]
    clock.advance(FADE_S)
    assert heat.note(A, BLOCK) == pytest.approx(3 / math.e)


def test_a_steady_rate_counts_as_what_comes_within_the_time_of_fading() -> None:
    clock = ManualClock()
    heat = PrefixHeat(clock)
    for _ in range(3_000):
        clock.advance(0.1)
        count = heat.note(A, BLOCK)
    assert count == pytest.approx(FADE_S / 0.1, rel=0.01)


def test_other_blocks_and_other_domains_stay_cold() -> None:
    heat = PrefixHeat(ManualClock())
    heat.note(A, BLOCK)
    assert heat.note(A, OTHER) == heat.note(B, BLOCK) == 0.0


def test_prefixes_that_were_not_asked_for_longest_are_forgotten() -> None:
    heat = PrefixHeat(ManualClock(), max_prefixes=2)
    for block in (BLOCK, OTHER, BLOCK, b"z" * 16):
        heat.note(A, block)
    assert heat.note(A, BLOCK) == 2.0
    assert heat.note(A, OTHER) == 0.0
