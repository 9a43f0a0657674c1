"""Time as a parameter, so that everything that waits or expires can be tested and simulated."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def unix_s(self) -> float:
        """Seconds since 1970, comparable between machines as far as their clocks agree."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


class SteadyClock:
    """The time of day as it was when this was made, going on with the monotonic clock.

    For what one process tells and judges by itself: a wall clock that is set later changes nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = clock.unix_s() - clock.monotonic_s()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def unix_s(self) -> float:
        return self._clock.monotonic_s() + self._ahead_s


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now_s = start_s

    def monotonic_s(self) -> float:
        return self._now_s

    def unix_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Moves time forward by `seconds`."""
        self._now_s += seconds
