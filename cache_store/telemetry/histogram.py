"""Counts of values by bucket: plain numbers, cheap to add to. Owned by whoever adds; others read copies.

A reader on another thread may see a value in the counts that is not in the sum yet, and nothing worse.
"""

from __future__ import annotations

from bisect import bisect_left

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds of whole requests and their parts."""

TOKEN_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
"""Seconds of one token or one step."""


class Histogram:
    """Values up to each of some bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds`: upper ends of the buckets, ascending; one more bucket takes what is beyond the last."""
        assert list(bounds) == sorted(set(bounds)), "bounds ascend"
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By bucket, not added up."""
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float, times: int = 1) -> None:
        """Adds a value that occurred so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
