"""Two processes of a kind, asked for a moment: both at once, and one after the other in random order.

Processor time for a call is compared while both are asked, since whatever else the machine does, its caches and its
clock, is then the same for both; calls per second while one is. A moment ends by the clock: calls that are open then
are waited for, and count.
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


@dataclass(frozen=True, slots=True)
class Both:
    """Moments of both of a pair."""

    off: Moment
    on: Moment

    @property
    def cpu_ratio(self) -> float:
        """On against off, of calls per second of processor time."""
        return (self.on.calls / self.on.cpu_s) / (self.off.calls / self.off.cpu_s)

    @property
    def rate_ratio(self) -> float:
        """Of calls per second."""
        return (self.on.calls / self.on.took_s) / (self.off.calls / self.off.took_s)


@dataclass(slots=True)
class Ratios:
    """All rounds of one pair."""

    together: list[Both] = field(default_factory=list)
    in_turn: list[Both] = field(default_factory=list)

    @property
    def cpu(self) -> list[float]:
        """While both were asked."""
        return [each.cpu_ratio for each in self.together]

    @property
    def rate(self) -> list[float]:
        """While one was asked."""
        return [each.rate_ratio for each in self.in_turn]


@dataclass(frozen=True, slots=True)
class Pair:
    """One kind of process: off, and on."""

    name: str
    calls: tuple[Asked, Asked]
    processes: tuple[Listening, Listening]

    async def warm(self, seconds: float) -> None:
        """Has both do what is measured later."""
        await self._moments((0, 1), seconds)

    async def together(self, seconds: float, ratios: Ratios) -> None:
        """Both at once: whatever else the machine does, it does to both."""
        off, on = await self._moments((0, 1), seconds)
        ratios.together.append(Both(off, on))

    async def in_turn(self, order: random.Random, seconds: float, ratios: Ratios) -> None:
        """One after the other, each with the machine to itself."""
        found = {side: (await self._moments((side,), seconds))[0] for side in order.sample((0, 1), 2)}
        ratios.in_turn.append(Both(found[0], found[1]))

    async def _moments(self, sides: Sequence[int], seconds: float) -> list[Moment]:
        num_calls = [0, 0]
        cpu_s = [self.processes[side].cpu_s() for side in sides]
        began_s = time.perf_counter()

        async def caller(side: int) -> None:
            while time.perf_counter() - began_s < seconds:
                await self.calls[side]()
                num_calls[side] += 1

        async with asyncio.TaskGroup() as tasks:
            for number in range(CONCURRENCY):
                tasks.create_task(caller(sides[number % len(sides)]))
        took_s = time.perf_counter() - began_s
        return [
            Moment(num_calls[side], took_s, self.processes[side].cpu_s() - began)
            for side, began in zip(sides, cpu_s, strict=True)
        ]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the ends of the middle half."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return middle, low, high
