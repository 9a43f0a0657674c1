"""Arrivals are drawn ahead, by the seed alone, within their bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.errors import InvalidRequestError
from services.loadtest.arrivals import Bounds, ClosedLoop, OpenLoop, Ramp, RampKind, TraceTimes, arrival_times
from services.loadtest.token_source import stable_rng

ENDLESS = Bounds(None, math.inf)


def times(open_loop: OpenLoop, number: int, bounds: Bounds = ENDLESS, each: float = 1.0) -> list[float]:
    return list(itertools.islice(arrival_times(open_loop, bounds, each, stable_rng("test")), number))


@given(st.floats(0.01, 1e4), st.sampled_from([0.1, 0.5, 1.0, 3.0, math.inf]))
def test_times_begin_at_0_and_never_go_back(rate: float, burstiness: float) -> None:
    found = times(OpenLoop(rate, burstiness), 50)
    assert found[0] == 0
    assert found == sorted(found)
    assert found == times(OpenLoop(rate, burstiness), 50)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (math.inf, 0.0)])
def test_gaps_have_the_rate_and_the_variation_that_were_asked_for(burstiness: float, variation: float) -> None:
    gaps = np.diff(times(OpenLoop(5.0, burstiness), 20_000))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.06)


def test_a_rate_counts_requests_also_where_a_session_makes_several() -> None:
    gaps = np.diff(times(OpenLoop(5.0, math.inf), 10, each=4.0))
    assert gaps == pytest.approx([0.8] * 9)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert times(OpenLoop(math.inf), 5, Bounds(5, None)) == [0.0] * 5
    with pytest.raises(InvalidRequestError, match="num-prompts"):
        times(OpenLoop(math.inf), 5, Bounds(None, 1.0))


def test_nothing_starts_after_the_duration() -> None:
    found = times(OpenLoop(10.0, math.inf), 1_000, Bounds(None, 0.95))
    assert len(found) == 10


@pytest.mark.parametrize("bounds", [Bounds(1_000, None), Bounds(None, 100.0)])
@pytest.mark.parametrize("kind", RampKind)
def test_a_ramp_grows_from_its_start_to_its_end(kind: RampKind, bounds: Bounds) -> None:
    gaps = np.diff(times(OpenLoop(1.0, math.inf, Ramp(kind, 2.0, 20.0)), 1_000, bounds))
    assert gaps[0] == pytest.approx(0.5, rel=0.1)
    assert gaps[-1] == pytest.approx(0.05, rel=0.1)
    assert (np.diff(gaps) <= 1e-9).all()


def test_an_exponential_ramp_is_in_the_geometric_middle_half_way() -> None:
    assert Ramp(RampKind.EXPONENTIAL, 1.0, 100.0).rate(0.5) == pytest.approx(10.0)
    assert Ramp(RampKind.LINEAR, 1.0, 100.0).rate(0.5) == pytest.approx(50.5)


def test_processes_are_named() -> None:
    found = [OpenLoop(1.0, shape).name for shape in (1.0, 0.5, math.inf)]
    assert [*found, OpenLoop(math.inf).name] == ["poisson", "gamma", "constant", "immediate"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: OpenLoop(0.0),
        lambda: OpenLoop(1.0, -1.0),
        lambda: OpenLoop(1.0, ramp=Ramp(RampKind.LINEAR, 1.0, math.inf)),
        lambda: ClosedLoop(0),
        lambda: TraceTimes(0.0),
        lambda: Bounds(None, None),
        lambda: Bounds(0, None),
        lambda: Bounds(None, 0.0),
    ],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(InvalidRequestError):
        make()  # type: ignore[operator]
