"""A bucket that fills at a rate: whoever takes from it may bring it below zero once, and then waits. Pure arithmetic.

A request is admitted while the level is above zero and takes its whole cost at once, so that a large one is not starved
by small ones; what it takes too much is paid back before the next. Over any time the bucket gives no more than rate x
time + burst + one request. `cache_store/scripts/take_tokens.lua` is the same inside Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BURST_S = 0.4
"""What a full bucket holds, as seconds of its rate."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of one try."""

    num_admitted: int
    """Of the costs, from the first on."""
    spare: int
    """Tokens given beyond the costs."""


class TokenBucket:
    """Owned by one event loop. Full when it is made."""

    def __init__(self, now_s: float) -> None:
        self._level: float | None = None
        self._at_s = now_s

    def take(self, rate: float, spent: float, costs: Sequence[int], spare: int, now_s: float) -> Taken:
        """Pays `spent` (negative: gives back), then admits `costs` in order, then gives at most `spare` tokens.

        `rate` is in tokens per second and may differ from call to call.
        """
        level = min(rate * BURST_S, self.level(rate, now_s) - spent)
        num_admitted = 0
        for cost in costs:
            if level <= 0:
                break
            level -= cost
            num_admitted += 1
        given = min(spare, int(max(0.0, level))) if num_admitted == len(costs) else 0
        self._level, self._at_s = level - given, now_s
        return Taken(num_admitted, given)

    def level(self, rate: float, now_s: float) -> float:
        """Tokens that are there; below zero: what is owed."""
        burst = rate * BURST_S
        before = burst if self._level is None else self._level
        return min(burst, before + rate * max(0.0, now_s - self._at_s))
