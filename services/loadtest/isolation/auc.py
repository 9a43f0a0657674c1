"""How well times of one kind are told from times of another: the area under the ROC curve, with DeLong's error.

Pure. The AUC is the probability that a sample of `high` exceeds one of `low`, ties counting half: 0.5 where nothing
can be told, 1 where a threshold tells every pair. Its standard error is DeLong's (Biometrics 44, 1988), by ranks in
O(n log n); it assumes nothing of how the times are distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]

_MIN_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class Auc:
    """An estimate."""

    value: float
    standard_error: float
    num_low: int
    num_high: int

    @property
    def distinguishability(self) -> float:
        """The AUC of whoever guesses in the better direction, 0.5 to 1."""
        return max(self.value, 1.0 - self.value)

    def upper_bound(self, confidence: float) -> float:
        """Of `distinguishability`: what the true one does not exceed, with that confidence on either side of 0.5."""
        return self.distinguishability + quantile(confidence) * self.standard_error

    def lower_bound(self, confidence: float) -> float:
        """What the true AUC does not fall below, with that confidence."""
        return self.value - quantile(confidence) * self.standard_error


def quantile(probability: float) -> float:
    """Of the standard normal distribution."""
    return NormalDist().inv_cdf(probability)


def auc(low: Values, high: Values) -> Auc:
    """How well values of `high` exceed those of `low`. Raises ValueError with fewer than two of either."""
    if min(len(low), len(high)) < _MIN_SAMPLES:
        raise ValueError(f"an AUC needs at least two values on both sides, not {len(low)} and {len(high)}")
    ranks = _midranks(np.concatenate([low, high]))
    low_ranks, high_ranks = ranks[: len(low)], ranks[len(low) :]
    # Of each value of one side, the part of the other side that it exceeds.
    of_high = (high_ranks - _midranks(high)) / len(low)
    of_low = 1.0 - (low_ranks - _midranks(low)) / len(high)
    variance = float(of_high.var(ddof=1) / len(high) + of_low.var(ddof=1) / len(low))
    return Auc(float(of_high.mean()), variance**0.5, len(low), len(high))


def _midranks(values: Values) -> Values:
    """From 1; equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_ranks = last - (counts - 1) / 2.0
    ranks: Values = mean_ranks[inverse]
    return ranks
