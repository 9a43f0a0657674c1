"""Leaves with a time to live, soonest first.

A heap with lazy deletion: an entry counts as long as its block is still a leaf that nobody holds and has not been used
since. Owned by the pool.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic

from cache_store.eviction_queue import B, may_go
from cache_store.policy import Use

_Entry = tuple[float, int, B, Use]
"""When it ends, what makes entries unequal, the block, and the use that must still be its last."""

_MIN_SWEEP = 256


class Expiries(Generic[B]):
    """Of all tenants of a pool."""

    __slots__ = ("_heap", "_sequence", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[_Entry[B]] = []
        self._sequence = 0
        self._sweep_at = _MIN_SWEEP

    def __len__(self) -> int:
        """Entries, also those that count no more: at most twice as many as blocks that count, and a few."""
        return len(self._heap)

    def push(self, block: B, use: Use) -> None:
        """Adds a leaf that nobody holds, with its last use."""
        self._sequence += 1
        heappush(self._heap, (use.expires_s, self._sequence, block, use))
        if len(self._heap) > self._sweep_at:
            self._heap = list({id(entry[2]): entry for entry in self._heap if _counts(entry)}.values())
            heapify(self._heap)
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._heap))

    def pop(self, now_s: float) -> B | None:
        """A leaf whose time is over, to be evicted before the next is asked for; None where there is none."""
        while self._heap and self._heap[0][0] <= now_s:
            entry = heappop(self._heap)
            if _counts(entry):
                return entry[2]
        return None


def _counts(entry: _Entry[B]) -> bool:
    return may_go(entry[2], entry[3])
