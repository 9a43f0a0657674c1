"""The counter-based generator: the same numbers everywhere, another number for every counter."""

from __future__ import annotations

from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from worker.sampling import uniform

GOLDEN = (0.9255136404872741, 0.3192344696967009)


def test_golden_values_hold_over_processes_and_versions() -> None:
    assert uniform(0, 0, 0) == GOLDEN[0]
    assert uniform(2**64 - 1, 3, 4_095) == GOLDEN[1]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_numbers_are_in_the_unit_interval(seed: int, sample_index: int, position: int) -> None:
    assert 0 <= uniform(seed, sample_index, position) < 1


def test_every_counter_has_its_own_number() -> None:
    numbers = {uniform(seed, sample, position) for seed in range(10) for sample in range(10) for position in range(50)}
    assert len(numbers) == 5_000


def test_numbers_are_spread_evenly() -> None:
    numbers = [uniform(1, 0, position) for position in range(10_000)]
    assert abs(mean(numbers) - 0.5) < 0.02
    for tenth in range(10):
        share = sum(tenth <= 10 * number < tenth + 1 for number in numbers) / len(numbers)
        assert abs(share - 0.1) < 0.02
