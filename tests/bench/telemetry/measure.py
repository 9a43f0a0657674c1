"""Two processes of a kind asked in turn for a moment each, in random order within a round.

A moment ends by the clock: calls that are open then are waited for, and count.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.router.processes import Listening
from tests.bench.telemetry.sides import Asked

CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class Moment:
    """What one process did while it was asked."""

    calls: int
    took_s: float
    cpu_s: float
    """Of the process, all its threads."""


@dataclass(slots=True)
class Ratios:
    """On against off, by round."""

    cpu: list[float] = field(default_factory=list)
    """Of calls per second of processor time."""
    rate: list[float] = field(default_factory=list)
    """Of calls per second."""
    off: list[Moment] = field(default_factory=list)
    on: list[Moment] = field(default_factory=list)

    def add(self, off: Moment, on: Moment) -> None:
        """One more round."""
        self.off.append(off)
        self.on.append(on)
        self.cpu.append((on.calls / on.cpu_s) / (off.calls / off.cpu_s))
        self.rate.append((on.calls / on.took_s) / (off.calls / off.took_s))


@dataclass(frozen=True, slots=True)
class Pair:
    """One kind of process: off, and on."""

    name: str
    calls: tuple[Asked, Asked]
    processes: tuple[Listening, Listening]

    async def warm(self, seconds: float) -> None:
        """Has both do what is measured later."""
        for side in (0, 1):
            await self._moment(side, seconds)

    async def round(self, order: random.Random, seconds: float, ratios: Ratios) -> None:
        """Both, one after the other."""
        found = {side: await self._moment(side, seconds) for side in order.sample((0, 1), 2)}
        ratios.add(found[0], found[1])

    async def _moment(self, side: int, seconds: float) -> Moment:
        process, call = self.processes[side], self.calls[side]
        num_calls = 0
        cpu_s, began_s = process.cpu_s(), time.perf_counter()

        async def caller() -> None:
            nonlocal num_calls
            while time.perf_counter() - began_s < seconds:
                await call()
                num_calls += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENCY):
                tasks.create_task(caller())
        return Moment(num_calls, time.perf_counter() - began_s, process.cpu_s() - cpu_s)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the ends of the middle half."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return middle, low, high
