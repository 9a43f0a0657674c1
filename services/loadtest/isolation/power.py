"""How many samples the isolation test needs, so that a system without a leak passes and one with a leak does not.

Pure. Nothing to tell means an AUC of 0.5, whose estimate from `n` samples of either kind scatters with the variance
(2n + 1) / (12 n²), that of the Mann-Whitney statistic, whatever the distribution of the times. The test passes where

    max(AUC, 1 - AUC) + z(CONFIDENCE) × standard error  <  limit.

`n` is the least for which that holds with the wanted probability. A leak that shows in a part f of the requests
moves the AUC by f / 2, and fails the test with probability CONFIDENCE where that reaches the limit. Samples are those
of both tenants; what only one of them can see counts half.

The controls, repeats that have to be told from first requests, need no bound: a few are enough where the prompts are
long enough. With MOST_CONTROLS of them a true AUC of 0.98 is found below 0.95 in less than a run of a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.loadtest.isolation.auc import quantile

CONFIDENCE = 0.95
"""Of the bound that has to stay below the limit."""

PASS_PROBABILITY = 0.98
"""Of a whole test of a system that leaks nothing."""

LEAST_SAMPLES = 20
"""Of fewer, times say nothing: they may be in any order by chance."""

MOST_CONTROLS = 100
"""Repeats in each variant."""

_MARGIN = 1.03
"""The error is estimated from the same samples, and scatters itself."""

STANDARD_LIMIT = 0.55
ROUGH_LIMIT = 0.60
THOROUGH_LIMIT = 0.525


@dataclass(frozen=True, slots=True)
class Power:
    """What a test of that size can tell."""

    limit: float
    """Of the upper bound of the AUC."""
    num_samples: int
    """Of either kind, in each variant of the test."""
    num_controls: int
    """Repeats in each variant, at least."""
    num_variants: int
    """All of them have to pass."""

    @property
    def standard_error(self) -> float:
        """Of an AUC of 0.5."""
        return null_error(self.num_samples)

    @property
    def certain_leak(self) -> float:
        """The least part of leaking requests that each variant finds with CONFIDENCE."""
        return 2.0 * (self.limit - 0.5)

    def text(self) -> str:
        """For people."""
        return (
            f"power: {self.num_samples:,} requests of either kind, and {self.num_controls:,} repeats or more, in each "
            f"of {self.num_variants} variants. Without a leak the AUC is 0.5 ± {self.standard_error:.4f} (one standard "
            f"error), and the upper {CONFIDENCE:.0%} bound stays below {self.limit:g} in at least "
            f"{PASS_PROBABILITY:.0%} of runs; a leak that shows in {self.certain_leak:.0%} of the requests or more "
            f"fails the test in at least {CONFIDENCE:.0%}."
        )


def null_error(num_samples: int) -> float:
    """Standard error of the AUC of two samples of that size from one distribution."""
    return float(((2 * num_samples + 1) / 12.0) ** 0.5 / num_samples)


def plan_power(limit: float, num_variants: int) -> Power:
    """The smallest test. Raises ValueError for a limit that leaves no room above 0.5."""
    if not 0.5 < limit < 1.0:
        raise ValueError(f"the limit of the AUC is above 0.5, where nothing can be told, and below 1, not {limit:g}")
    failing = (1.0 - PASS_PROBABILITY) / num_variants
    width = quantile(CONFIDENCE) + quantile(1.0 - failing / 2.0)
    wanted = (limit - 0.5) / (width * _MARGIN)
    num_samples = LEAST_SAMPLES
    while null_error(num_samples) > wanted:
        num_samples += 1
    return Power(limit, num_samples, min(num_samples, MOST_CONTROLS), num_variants)
