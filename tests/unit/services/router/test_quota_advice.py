"""Advice from the curves of several workers."""

from __future__ import annotations

import pytest

from cache_store.reuse_curve import NO_CURVE, CurvePoints, bin_of
from services.router.quota_advice import WorkerCurve, advice_of


def curve(asked: float, **hits_at: float) -> CurvePoints:
    """Hits that need room for so many blocks: `at_100=30`."""
    bins = [0.0] * 700
    for name, number in hits_at.items():
        bins[bin_of(int(name.removeprefix("at_")) - 0.5)] += number
    return CurvePoints(asked, tuple(bins), found_blocks=asked / 4)


def test_hits_of_workers_add_up_each_at_its_own_size() -> None:
    small = WorkerCurve(100, guaranteed_blocks=10, used_blocks=50, curve=curve(100, at_5=20, at_12=30))
    large = WorkerCurve(1_000, guaranteed_blocks=100, used_blocks=0, curve=curve(300, at_50=60, at_900=90))
    advice = advice_of([small, large], num_missing=1)
    assert advice.is_guaranteed
    assert advice.base.share == pytest.approx(0.1)
    assert advice.base.num_blocks == 110
    assert advice.base.hit_share == pytest.approx(80 / 400)
    by_share = {round(point.share, 3): point for point in advice.points}
    assert by_share[0.15].hit_share == pytest.approx(110 / 400)
    assert by_share[1.0].hit_share == pytest.approx(200 / 400)
    assert advice.found_share == pytest.approx(0.25)
    assert (advice.num_workers, advice.num_missing, advice.asked_blocks) == (2, 1, 400)
    assert advice.enough.share == pytest.approx(0.9, abs=0.03)


def test_without_a_guarantee_it_begins_with_what_is_used() -> None:
    advice = advice_of([WorkerCurve(100, 0, 40, curve(100, at_20=50))], 0)
    assert not advice.is_guaranteed
    assert advice.base.share == pytest.approx(0.4)
    assert all(point.share <= 1 for point in advice.points)


def test_a_tenant_that_asked_for_nothing_gets_no_hits_and_no_error() -> None:
    advice = advice_of([WorkerCurve(100, 0, 0, NO_CURVE)], 0)
    assert advice.asked_blocks == 0
    assert advice.base.hit_share == 0
    assert [point.share for point in advice.points] == [1.0]
