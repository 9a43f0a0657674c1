"""Figures as benchmarks of models print them: percentiles, and the conditions under which they were taken."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from tests.bench.percentiles import percentile


def spread(values: Sequence[float], unit: str = "ms", scale: float = 1e3) -> str:
    """p50, p95 and p99 of seconds in `unit`."""
    p50, p95, p99 = (percentile(values, share) * scale for share in (0.5, 0.95, 0.99))
    return f"p50 {p50:8.1f}  p95 {p95:8.1f}  p99 {p99:8.1f} {unit}"


def median_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Median of the ratios a / b, pair by pair: both were measured in turn."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def conditions(threads: int) -> str:
    """One line: processor, load, versions, threads."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return (
        f"{os.cpu_count()} cores {model}, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, {threads} thread{'s' if threads > 1 else ''}, float32"
    )
