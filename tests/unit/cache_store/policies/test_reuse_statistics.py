"""Life tables and worths, against distributions that are known and horizons that are tried one by one."""

from __future__ import annotations

import math
import random

import pytest

from cache_store.policies.reuse_statistics import EDGES_S, NUM_BUCKETS, ReuseStatistics, bucket_of

AGES_S = (0.0, 0.4, 0.5, 0.7, 1.0, 30.0, 31.7, 1_000.0, 8_000.0, 1e6)


def live(statistics: ReuseStatistics, number: int, ages_s: list[float]) -> None:
    """Blocks of a class that were used again at these ages; infinite: never."""
    for age_s in ages_s:
        if age_s < math.inf:
            statistics.note_reused(number, 0, age_s)
        else:
            for bucket in range(NUM_BUCKETS - 1):
                statistics.note_passed(number, bucket)
    statistics.refresh()


@pytest.mark.parametrize("age_s", AGES_S)
def test_an_age_lies_within_its_bucket(age_s: float) -> None:
    bucket = bucket_of(age_s)
    assert EDGES_S[bucket] <= age_s * (1 + 1e-9)
    assert age_s < EDGES_S[bucket + 1] or bucket == NUM_BUCKETS - 1


def test_a_constant_rate_is_worth_that_rate_at_every_age() -> None:
    rng, rate = random.Random(1), 1 / 40
    statistics = ReuseStatistics()
    number = statistics.add_class(0)
    live(statistics, number, [rng.expovariate(rate) for _ in range(20_000)])
    for age_s in (0.0, 5.0, 20.0, 60.0):
        assert statistics.worth(number, age_s) == pytest.approx(rate, rel=0.15)


def test_a_worth_is_the_best_that_any_horizon_gives() -> None:
    rng = random.Random(2)
    ages_s = [rng.lognormvariate(4, 1) for _ in range(30_000)] + [math.inf] * 10_000
    statistics = ReuseStatistics()
    number = statistics.add_class(0)
    live(statistics, number, ages_s)
    for start_s in (EDGES_S[4], EDGES_S[10], EDGES_S[14]):
        left = [each for each in ages_s if each >= start_s]
        best = max(
            sum(each < end_s for each in left) / sum(min(each, end_s) - start_s for each in left)
            for end_s in EDGES_S[1:-1]
            if end_s > start_s
        )
        assert statistics.worth(number, start_s) == pytest.approx(best, rel=0.1)


def test_what_is_never_used_again_sinks_and_what_always_is_rises() -> None:
    statistics = ReuseStatistics()
    never, always = statistics.add_class(0), statistics.add_class(0)
    unknown = statistics.worth(0, 10.0)
    live(statistics, never, [math.inf] * 500)
    live(statistics, always, [20.0] * 500)
    assert statistics.worth(never, 10.0) < unknown / 5 < unknown * 2 < statistics.worth(always, 10.0)


def test_a_class_without_data_follows_the_one_above() -> None:
    statistics = ReuseStatistics()
    above = statistics.add_class(0)
    live(statistics, statistics.add_class(above), [15.0] * 400)
    fresh = statistics.add_class(above)
    statistics.refresh()
    assert statistics.worth(fresh, 10.0) > 5 * ReuseStatistics().worth(0, 10.0)


def test_passed_and_reused_seconds_count_once() -> None:
    whole, parts = ReuseStatistics(), ReuseStatistics()
    for _ in range(50):
        whole.note_reused(0, 0, 100.0)
        for bucket in range(6):
            parts.note_passed(0, bucket)
        parts.note_reused(0, 6, 100.0)
    whole.refresh()
    parts.refresh()
    assert [parts.worth(0, age_s) for age_s in AGES_S] == pytest.approx([whole.worth(0, age_s) for age_s in AGES_S])


def test_worths_have_no_jumps() -> None:
    rng, statistics = random.Random(3), ReuseStatistics()
    live(statistics, 0, [rng.lognormvariate(4, 1) for _ in range(1_000)])
    for edge_s in EDGES_S[1:-1]:
        assert statistics.worth(0, edge_s * 0.999) == pytest.approx(statistics.worth(0, edge_s * 1.001), rel=0.05)
