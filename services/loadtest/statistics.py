"""Percentiles, fairness and peaks. Pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from services.loadtest.result import MAIN_PERCENTILES, LatencySummary


def latency_summary(seconds: Iterable[float], percentiles: Sequence[float] = MAIN_PERCENTILES) -> LatencySummary:
    """Of latencies in seconds; percentiles by linear interpolation, as numpy and `vllm bench serve` have them."""
    values = np.fromiter(seconds, dtype=float) * 1e3
    names = [f"{each:g}" for each in percentiles]
    if not len(values):
        return LatencySummary(0, 0.0, 0.0, 0.0, dict.fromkeys(names, 0.0))
    found = np.percentile(values, list(percentiles))
    return LatencySummary(
        count=len(values),
        mean_ms=_rounded(values.mean()),
        median_ms=_rounded(np.median(values)),
        std_ms=_rounded(values.std()),
        percentiles_ms={name: _rounded(value) for name, value in zip(names, found, strict=True)},
    )


def jain_index(shares: Sequence[float]) -> float | None:
    """(Σx)² / (n Σx²): 1 where all have the same, 1/n where one has all. None for fewer than two.

    R. Jain, D. Chiu, W. Hawe: A quantitative measure of fairness, 1984.
    """
    squares = sum(each * each for each in shares)
    if len(shares) < 2 or not squares:
        return None
    return sum(shares) ** 2 / (len(shares) * squares)


def peak_concurrency(spans: Iterable[tuple[float, float]]) -> int:
    """Most spans [start, end) that cover one moment."""
    changes = sorted(change for start, end in spans if end > start for change in ((start, 1), (end, -1)))
    peak = running = 0
    for _, change in changes:  # at one moment ends come first
        running += change
        peak = max(peak, running)
    return peak


def peak_per_second(arrivals: Iterable[tuple[float, int]]) -> float:
    """Most tokens within a whole second of the run; `arrivals` are (second, tokens)."""
    seconds: dict[int, int] = {}
    for at_s, number in arrivals:
        second = math.floor(at_s)
        seconds[second] = seconds.get(second, 0) + number
    return float(max(seconds.values(), default=0))


def _rounded(value: float) -> float:
    return round(float(value), 6)
