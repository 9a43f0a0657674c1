"""From values to places on an axis, and the values that are written beside it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_DIGITS = (1.0, 2.0, 5.0)


class Scale(Protocol):
    """An axis."""

    def part(self, value: float) -> float:
        """Where a value lies: 0 at the axis' beginning, 1 at its end."""
        ...

    def ticks(self) -> tuple[float, ...]:
        """Values to write beside it."""
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """Equal distances are equal differences."""

    low: float
    high: float
    num_ticks: int = 5

    def part(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> tuple[float, ...]:
        step = nice_step((self.high - self.low) / self.num_ticks)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(each * step for each in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class Log:
    """Equal distances are equal ratios."""

    low: float
    high: float

    def part(self, value: float) -> float:
        return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)

    def ticks(self) -> tuple[float, ...]:
        decades = math.log10(self.high / self.low)
        digits = _LOG_DIGITS if decades < 3 else (1.0,)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [digit * 10.0**power for power in powers for digit in digits]
        return tuple(each for each in found if self.low * 0.999 <= each <= self.high * 1.001)


def from_zero(values: Iterable[float]) -> Linear:
    """An axis from 0 to a little above the greatest value."""
    high = max(values, default=0.0)
    if high <= 0:
        return Linear(0.0, 1.0)
    step = nice_step(high / 4)
    return Linear(0.0, math.ceil(high / step - 1e-9) * step)


def log_around(values: Iterable[float]) -> Log:
    """A logarithmic axis around positive values."""
    found = [each for each in values if each > 0]
    low, high = (min(found), max(found)) if found else (1.0, 10.0)
    return Log(low / 1.25, max(high * 1.25, low * 2.0))


def nice_step(rough: float) -> float:
    """The least of 1, 2, 2.5 and 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(each * power for each in _STEPS if each * power >= rough * (1 - 1e-9))


def number_text(value: float) -> str:
    """A tick's value, short: 1,500 and 0.25."""
    if value == 0:
        return "0"
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    if abs(value) >= 10_000:
        return f"{value / 1_000:g}k"
    return f"{value:,.10g}" if abs(value) >= 1 else f"{value:.3g}"
