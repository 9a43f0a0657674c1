"""The blocks of one tenant that may go: leaves that nobody holds, by class of their last use, oldest first.

A heap per class with lazy deletion: an entry counts as long as its block is still a leaf that nobody holds and has not
been used since. Whoever evicts gets whole tails: once a leaf is gone, its parent is next in the same class at the same
age. Knows no tenants, slots or memory pressure; owned by the account of the tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from cache_store.policy import ClassId, Use
from cache_store.prefix_tree import Block

Value = Callable[[ClassId, float], float]
"""Of a class after an age in seconds."""

_Entry = tuple[float, int, int, Block, Use]
"""Time and order of the last use, what makes entries unequal, the block, and the use that must still be its last."""

_MIN_SWEEP = 256


class EvictionQueue:
    """Leaves by class."""

    __slots__ = ("_classes", "_num_entries", "_sequence", "_sweep_at")

    def __init__(self) -> None:
        self._classes: dict[ClassId, list[_Entry]] = {}
        self._sequence = 0
        self._num_entries = 0
        self._sweep_at = _MIN_SWEEP

    def push(self, block: Block) -> None:
        """Adds a leaf that nobody holds. Its last use decides its place."""
        use = block.use
        assert use is not None
        self._sequence += 1
        heap = self._classes.get(use.class_id)
        if heap is None:
            heap = self._classes[use.class_id] = []
        heappush(heap, (use.time_s, use.order, self._sequence, block, use))
        self._num_entries += 1
        if self._num_entries > self._sweep_at:
            self._sweep()

    def pop_least(self, value: Value, now_s: float) -> Block | None:
        """Takes out the oldest leaf of the class whose oldest leaf is worth least; None where there is no leaf."""
        best: list[_Entry] | None = None
        least = 0.0
        for class_id, heap in list(self._classes.items()):
            if not self._settle(heap):
                del self._classes[class_id]
                continue
            worth = value(class_id, now_s - heap[0][0])
            if best is None or worth < least:
                best, least = heap, worth
        if best is None:
            return None
        self._num_entries -= 1
        return heappop(best)[3]

    def leaves(self) -> Iterator[Block]:
        """All entries that count; a block may come twice. For checks."""
        for heap in self._classes.values():
            yield from (entry[3] for entry in heap if _counts(entry))

    def _settle(self, heap: list[_Entry]) -> bool:
        """Removes entries that count no more from the top; False where nothing is left."""
        while heap and not _counts(heap[0]):
            heappop(heap)
            self._num_entries -= 1
        return bool(heap)

    def _sweep(self) -> None:
        """Bounds what lazy deletion leaves behind: no entry that counts no more, and each block once."""
        for class_id, heap in list(self._classes.items()):
            heap[:] = {id(entry[3]): entry for entry in heap if _counts(entry)}.values()
            heapify(heap)
            if not heap:
                del self._classes[class_id]
        self._num_entries = sum(map(len, self._classes.values()))
        self._sweep_at = max(_MIN_SWEEP, 2 * self._num_entries)


def may_go(block: Block, use: Use) -> bool:
    """Whether it is a leaf that nobody holds, and has not been used since."""
    return block.use is use and block.ref_count == 0 and not block.children and block.parent is not None


def _counts(entry: _Entry) -> bool:
    return may_go(entry[3], entry[4])
