"""Latency one call after the other, and calls per second with many at once; all sides in turn.

The processor time of the process in between is read around calls of one side, so they come in blocks.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.percentiles import percentile
from tests.bench.router.sides import Side

CONCURRENCY = 32
BLOCK_CALLS = 50
"""Of one side, one after the other, before it is another one's turn."""


@dataclass(slots=True)
class Figures:
    """Of one side."""

    latency_s: list[float] = field(default_factory=list)
    """At concurrency 1."""
    loaded_s: list[float] = field(default_factory=list)
    """At CONCURRENCY."""
    cpu_s: float = 0.0
    """Processor time of the process in between, over the calls at concurrency 1."""
    rates: list[float] = field(default_factory=list)
    """Calls per second at CONCURRENCY, by round."""
    cpu_rates: list[float] = field(default_factory=list)
    """Calls per second of processor time of the process in between, by round."""

    def p(self, share: float) -> float:
        """Percentile of the latency at concurrency 1."""
        return percentile(self.latency_s, share)

    @property
    def cpu_rate(self) -> float:
        """Calls per second of processor time of the process in between, at concurrency 1; 0 where there is none."""
        return len(self.latency_s) / self.cpu_s if self.cpu_s else 0.0

    def summary(self) -> dict[str, float | None]:
        """What a table tells."""
        return {
            "p50_ms": self.p(0.5) * 1e3,
            "p99_ms": self.p(0.99) * 1e3,
            "cpu_rate": self.cpu_rate or None,
            "loaded_p50_ms": percentile(self.loaded_s, 0.5) * 1e3,
            "loaded_p99_ms": percentile(self.loaded_s, 0.99) * 1e3,
            "loaded_rate": statistics.median(self.rates),
            "loaded_cpu_rate": statistics.median(self.cpu_rates) if self.cpu_rates else None,
        }


async def measure(sides: Sequence[Side], num_calls: int, num_rounds: int, calls_per_round: int) -> dict[str, Figures]:
    """All sides, after a warm-up. A call with fewer tokens cached than there should be ends the benchmark."""
    found = {side.name: Figures() for side in sides}
    order = random.Random(0)
    for side in sides:
        for _ in range(min(50, num_calls)):
            await side.call()
    for _ in range(max(1, num_calls // BLOCK_CALLS)):
        for side in order.sample(list(sides), len(sides)):
            await _alone(side, found[side.name], min(num_calls, BLOCK_CALLS))
    for _ in range(num_rounds):
        for side in order.sample(list(sides), len(sides)):
            await _loaded(side, found[side.name], calls_per_round)
    return found


async def _alone(side: Side, figures: Figures, num_calls: int) -> None:
    cpu_s = side.between.cpu_s() if side.between else 0.0
    for _ in range(num_calls):
        started_s = time.perf_counter()
        cached = await side.call()
        figures.latency_s.append(time.perf_counter() - started_s)
        _require(side, cached)
    figures.cpu_s += side.between.cpu_s() - cpu_s if side.between else 0.0


async def _loaded(side: Side, figures: Figures, num_calls: int) -> None:
    left = iter(range(num_calls))
    cpu_s = side.between.cpu_s() if side.between else 0.0
    began_s = time.perf_counter()

    async def caller() -> None:
        for _ in left:
            started_s = time.perf_counter()
            cached = await side.call()
            figures.loaded_s.append(time.perf_counter() - started_s)
            _require(side, cached)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(caller())
    figures.rates.append(num_calls / (time.perf_counter() - began_s))
    if side.between:
        figures.cpu_rates.append(num_calls / max(0.01, side.between.cpu_s() - cpu_s))


def _require(side: Side, cached: int) -> None:
    if cached < side.min_cached:
        raise RuntimeError(f"{side.name}: {cached} tokens were cached, {side.min_cached} at least should be")
