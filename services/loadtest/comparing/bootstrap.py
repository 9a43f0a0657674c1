"""How sure the ratio of two runs' figures is: a bootstrap over blocks of neighbouring requests.

Requests that follow each other are not independent (a slow second meets all of them), so that blocks of neighbours are
drawn, circularly, of n^(1/3) requests each (Politis and Romano 1992). Pure but for the generator that is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.float64]
"""Requests in the order of time along the last axis."""
Statistic = Callable[[Rows], Rows]
"""Takes that axis away."""

CONFIDENCE = 0.95
_MOST_REPEATS, _LEAST_REPEATS = 1_000, 300
_WORK = 20_000_000
"""Values that are drawn at most, about."""
_AT_ONCE = 2_000_000
"""Of them in memory at one time."""


@dataclass(frozen=True, slots=True)
class Change:
    """From one run to another."""

    first: float
    second: float
    ratio: float
    """second / first - 1."""
    low: float
    """Of the ratio's interval."""
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether the interval lies on one side of no change."""
        return self.low > 0 or self.high < 0


def change(first: Rows, second: Rows, statistic: Statistic, rng: np.random.Generator) -> Change | None:
    """Of a statistic over rows in the order of time; None where there is nothing to divide by."""
    if not first.shape[-1] or not second.shape[-1]:
        return None
    base, other = float(statistic(first)), float(statistic(second))
    if not base > 0 or not math.isfinite(other):
        return None
    repeats = max(_LEAST_REPEATS, min(_MOST_REPEATS, _WORK // (first.shape[-1] + second.shape[-1])))
    bases, others = (_drawn(each, statistic, repeats, rng) for each in (first, second))
    told = bases > 0
    ratios = np.full(repeats, math.inf)  # beside a sample of which nothing is left any change is without bound
    ratios[told] = others[told] / bases[told] - 1.0
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(ratios, [tail, 100.0 - tail], method="linear" if told.all() else "inverted_cdf")
    return Change(base, other, other / base - 1.0, float(low), float(high))


def _drawn(rows: Rows, statistic: Statistic, repeats: int, rng: np.random.Generator) -> Rows:
    """The statistic of each of `repeats` samples."""
    count = rows.shape[-1]
    block = math.ceil(count ** (1.0 / 3.0))
    within = np.arange(block)
    found = []
    while repeats:
        now = min(repeats, max(1, _AT_ONCE // count))
        starts = rng.integers(count, size=(now, math.ceil(count / block), 1))
        picked = (starts + within).reshape(now, -1)[:, :count] % count
        found.append(statistic(rows[..., picked]))
        repeats -= now
    return np.concatenate(found)
