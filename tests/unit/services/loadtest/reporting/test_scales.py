"""Axes: values lie where they should, and what is written beside them is round and within."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.loadtest.reporting.scales import Linear, Log, from_zero, log_around, nice_step, number_text

POSITIVE = st.floats(1e-6, 1e9)


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_an_axis_from_zero_holds_all_values(values: list[float]) -> None:
    axis = from_zero(values)
    assert all(0 <= axis.part(each) <= 1 + 1e-9 for each in values)
    assert 3 <= len(axis.ticks()) <= 12


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_a_logarithmic_axis_holds_all_values(values: list[float]) -> None:
    axis = log_around(values)
    assert all(0 < axis.part(each) < 1 for each in values)
    assert all(-0.01 <= axis.part(each) <= 1.01 for each in axis.ticks())


@given(POSITIVE)
def test_steps_are_round_and_not_below(rough: float) -> None:
    step = nice_step(rough)
    assert rough * (1 - 1e-9) <= step <= 2.5 * rough


def test_empty_axes_are_still_axes() -> None:
    assert from_zero([]).ticks()
    assert log_around([]).ticks()
    assert from_zero([0.0]).part(0.0) == 0.0


def test_known_places() -> None:
    assert Linear(10, 20).part(15) == 0.5
    assert Log(1, 100).part(10) == pytest.approx(0.5)
    assert Log(1, 100).ticks() == pytest.approx((1, 2, 5, 10, 20, 50, 100))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.25"), (1_500, "1,500"), (20_000, "20k"), (3_000_000, "3M"), (50, "50")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text
