"""The blocks of one tenant that may go: leaves that nobody holds, by class of their last use, oldest first.

A heap per class with lazy deletion: an entry counts as long as its block is still a leaf that nobody holds and has not
been used since. Whoever evicts gets whole tails: once a leaf is gone, its parent is next in the same class at the same
age. Knows no tenants, slots or memory pressure; owned by the account of the tenant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from cache_store.policy import ClassId, Use

Value = Callable[[ClassId, float], float]
"""Of a class after an age in seconds."""


class Evictable(Protocol):
    """What is known of a block that may go, in any tier."""

    @property
    def use(self) -> Use | None:
        """Its last; None: unknown yet."""
        ...

    @property
    def ref_count(self) -> int:
        """Who needs it where it is."""
        ...

    @property
    def children(self) -> object:
        """What depends on it: false where nothing does."""
        ...

    @property
    def parent(self) -> object:
        """What it depends on; None where it has no place in the order any more."""
        ...


B = TypeVar("B", bound=Evictable)

_Entry = tuple[float, int, int, B, Use]
"""Time and order of the last use, what makes entries unequal, the block, and the use that must still be its last."""

_MIN_SWEEP = 256
_MIN_FRESH_S = 0.05
_FRESH_PART_OF_AGE = 0.02
"""How long a worth counts as what it was: worths change with the logarithm of the age, and slowly."""


class EvictionQueue(Generic[B]):
    """Leaves by class, and what the oldest of each class is worth."""

    __slots__ = (
        "_classes",
        "_fresh_until",
        "_look_at_s",
        "_num_entries",
        "_sequence",
        "_stale",
        "_sweep_at",
        "_worths",
    )

    def __init__(self) -> None:
        self._classes: dict[ClassId, list[_Entry[B]]] = {}
        self._worths: dict[ClassId, float] = {}
        """Of the classes that are not stale."""
        self._stale: set[ClassId] = set()
        self._fresh_until: dict[ClassId, float] = {}
        self._look_at_s = math.inf
        """When the first of them is over."""
        self._sequence = 0
        self._num_entries = 0
        self._sweep_at = _MIN_SWEEP

    def push(self, block: B) -> None:
        """Adds a leaf that nobody holds. Its last use decides its place."""
        use = block.use
        assert use is not None
        self._sequence += 1
        heap = self._classes.get(use.class_id)
        if heap is None:
            heap = self._classes[use.class_id] = []
        entry = (use.time_s, use.order, self._sequence, block, use)
        heappush(heap, entry)
        if heap[0] is entry and use.class_id not in self._stale:
            self._forget_worth(use.class_id)
        self._num_entries += 1
        if self._num_entries > self._sweep_at:
            self._sweep()

    def pop_least(self, value: Value, now_s: float) -> B | None:
        """Takes out the oldest leaf of the class whose oldest leaf is worth least; None where there is no leaf."""
        if len(self._classes) == 1:
            return self._pop_only()
        if now_s >= self._look_at_s:
            for class_id in [each for each, end_s in self._fresh_until.items() if end_s <= now_s]:
                self._forget_worth(class_id)
            self._look_at_s = min(self._fresh_until.values(), default=math.inf)
        while True:
            if self._stale:
                self._appraise(value, now_s)
            if not self._worths:
                return None
            class_id = min(self._worths, key=self._worths.__getitem__)
            self._forget_worth(class_id)
            heap = self._classes[class_id]
            if _counts(heap[0]):
                self._num_entries -= 1
                return heappop(heap)[3]

    def pop_oldest(self, before_s: float = math.inf) -> B | None:
        """Takes out the leaf whose last use was the longest ago, whatever its class; None where there is no leaf.

        None as well where that was used no earlier than `before_s`.
        """
        oldest: ClassId | None = None
        for class_id, heap in self._classes.items():
            if not _counts_first(heap):
                self._settle(heap)
                self._forget_worth(class_id)
            if heap and (oldest is None or heap[0] < self._classes[oldest][0]):
                oldest = class_id
        if oldest is None or self._classes[oldest][0][0] >= before_s:
            return None
        self._forget_worth(oldest)
        self._num_entries -= 1
        return heappop(self._classes[oldest])[3]

    def older_leaves(self, before_s: float) -> Iterator[B]:
        """Leaves that were used before a time, in no order; a block may come twice."""
        for class_id, heap in self._classes.items():
            if not _counts_first(heap):
                self._settle(heap)
                self._forget_worth(class_id)
            if heap and heap[0][0] < before_s:
                yield from (entry[3] for entry in heap if entry[0] < before_s and _counts(entry))

    def leaves(self) -> Iterator[B]:
        """All entries that count; a block may come twice. For checks."""
        for heap in self._classes.values():
            yield from (entry[3] for entry in heap if _counts(entry))

    def _pop_only(self) -> B | None:
        """Takes out the oldest leaf of the only class: there is nothing to compare it with."""
        ((class_id, heap),) = self._classes.items()
        if class_id not in self._stale:
            self._forget_worth(class_id)
        while heap:
            _, _, _, block, use = heappop(heap)
            self._num_entries -= 1
            if may_go(block, use):
                return block
        return None

    def _forget_worth(self, class_id: ClassId) -> None:
        if class_id in self._stale:
            return
        self._worths.pop(class_id, None)
        self._fresh_until.pop(class_id, None)
        self._stale.add(class_id)

    def _appraise(self, value: Value, now_s: float) -> None:
        """Asks again what the oldest leaves of the stale classes are worth."""
        for class_id in sorted(self._stale):
            heap = self._classes.get(class_id, [])
            if not self._settle(heap):
                self._classes.pop(class_id, None)
                continue
            age_s = now_s - heap[0][0]
            self._worths[class_id] = value(class_id, age_s)
            end_s = self._fresh_until[class_id] = now_s + max(_MIN_FRESH_S, _FRESH_PART_OF_AGE * age_s)
            self._look_at_s = min(self._look_at_s, end_s)
        self._stale.clear()

    def _settle(self, heap: list[_Entry[B]]) -> bool:
        """Removes entries that count no more from the top; False where nothing is left."""
        while heap and not _counts(heap[0]):
            heappop(heap)
            self._num_entries -= 1
        return bool(heap)

    def _sweep(self) -> None:
        """Bounds what lazy deletion leaves behind: no entry that counts no more, and each block once."""
        for class_id, heap in self._classes.items():
            heap[:] = {id(entry[3]): entry for entry in heap if _counts(entry)}.values()
            heapify(heap)
            self._forget_worth(class_id)
        self._num_entries = sum(map(len, self._classes.values()))
        self._sweep_at = max(_MIN_SWEEP, 2 * self._num_entries)


def may_go(block: Evictable, use: Use) -> bool:
    """Whether it is a leaf that nobody holds, and has not been used since."""
    return block.use is use and block.ref_count == 0 and not block.children and block.parent is not None


def _counts_first(heap: list[_Entry[B]]) -> bool:
    return bool(heap) and _counts(heap[0])


def _counts(entry: _Entry[B]) -> bool:
    return may_go(entry[3], entry[4])
