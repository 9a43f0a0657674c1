"""Latency one call after the other, and calls per second with many at once; all sides in turn."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.percentiles import percentile
from tests.bench.router.sides import Side

CONCURRENCY = 32


@dataclass(slots=True)
class Figures:
    """Of one side."""

    latency_s: list[float] = field(default_factory=list)
    """At concurrency 1."""
    loaded_s: list[float] = field(default_factory=list)
    """At CONCURRENCY."""
    rates: list[float] = field(default_factory=list)
    """Calls per second at CONCURRENCY, by round."""
    cpu_rates: list[float] = field(default_factory=list)
    """Calls per second of processor time of the process in between, by round."""

    def p(self, share: float) -> float:
        """Percentile of the latency at concurrency 1."""
        return percentile(self.latency_s, share)


async def measure(sides: Sequence[Side], num_calls: int, num_rounds: int, calls_per_round: int) -> dict[str, Figures]:
    """All sides, after a warm-up."""
    found = {side.name: Figures() for side in sides}
    order = random.Random(0)
    for side in sides:
        for _ in range(min(50, num_calls)):
            await side.call()
    for _ in range(num_calls):
        for side in order.sample(list(sides), len(sides)):
            started_s = time.perf_counter()
            await side.call()
            found[side.name].latency_s.append(time.perf_counter() - started_s)
    for _ in range(num_rounds):
        for side in order.sample(list(sides), len(sides)):
            await _loaded(side, found[side.name], calls_per_round)
    return found


async def _loaded(side: Side, figures: Figures, num_calls: int) -> None:
    left = iter(range(num_calls))
    cpu_s = side.between.cpu_s() if side.between else 0.0
    began_s = time.perf_counter()

    async def caller() -> None:
        for _ in left:
            started_s = time.perf_counter()
            await side.call()
            figures.loaded_s.append(time.perf_counter() - started_s)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(caller())
    figures.rates.append(num_calls / (time.perf_counter() - began_s))
    if side.between:
        figures.cpu_rates.append(num_calls / max(0.01, side.between.cpu_s() - cpu_s))
