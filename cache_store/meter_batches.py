"""Counts on their way to the store, in numbered batches: each counts once, however often it is written. Pure.

A batch that was made never changes. It is sent until the store has said that it has it, and is kept for a while after
that: a store that comes back from an older copy gets again what it has lost. Owned by one event loop.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from cache_store.domain import TenantId
from cache_store.metered import Counts, Metered

NUM_KEPT = 128
"""Batches that are kept after the store has them."""

MAX_LINES = 1_000
"""Of a batch."""

MAX_PENDING = 20_000
"""Lines that wait to be part of one. Beyond it the oldest hours are counted in the latest one."""


@dataclass(frozen=True, slots=True)
class MeterLine:
    """Counts of one tenant in one hour."""

    hour: int
    tenant: TenantId
    counts: Counts


@dataclass(frozen=True, slots=True)
class MeterBatch:
    """Lines under a number of their writer's."""

    number: int
    """From 1, without gaps."""
    oldest: int
    """The first that the writer still has: what comes before it is gone, and not to be waited for."""
    lines: tuple[MeterLine, ...]


class MeterBatches:
    """Of one writer."""

    def __init__(self, num_kept: int = NUM_KEPT, max_pending: int = MAX_PENDING) -> None:
        self._num_kept = num_kept
        self._max_pending = max_pending
        self._pending: dict[tuple[int, TenantId], Counter[Metered]] = {}
        self._kept: deque[tuple[int, tuple[MeterLine, ...]]] = deque()
        self._num_made = 0
        self._num_stored = 0
        """The store has all up to that one."""
        self.num_lost = 0
        """Batches that the store has lost, and that are not kept any more."""

    @property
    def has_more(self) -> bool:
        """Whether something is to be written."""
        return bool(self._pending) or self._num_stored < self._num_made

    def add(self, hour: int, tenant: TenantId, counts: Counts) -> None:
        """Counts that nobody has counted yet."""
        grown = {kind: number for kind, number in counts.items() if number}
        if not grown:
            return
        assert all(number > 0 for number in grown.values()), "counts only grow"
        if len(self._pending) >= self._max_pending and (hour, tenant) not in self._pending:
            self._press(hour)
        self._pending.setdefault((hour, tenant), Counter()).update(grown)

    def next(self) -> MeterBatch | None:
        """What is to be written now; None where the store has everything."""
        if self._num_stored == self._num_made:
            if not self._pending:
                return None
            taken = list(self._pending)[:MAX_LINES]
            lines = tuple(MeterLine(hour, tenant, self._pending.pop((hour, tenant))) for hour, tenant in taken)
            self._num_made += 1
            self._kept.append((self._num_made, lines))
        oldest = self._kept[0][0]
        number, lines = self._kept[self._num_stored + 1 - oldest]
        return MeterBatch(number, oldest, lines)

    def last(self) -> MeterBatch | None:
        """The last batch that was made, to ask the store whether it still has it; None before the first."""
        if not self._kept:
            return None
        number, lines = self._kept[-1]
        return MeterBatch(number, self._kept[0][0], lines)

    def note_stored(self, number: int) -> None:
        """The store has all batches up to `number`, and no later one."""
        oldest = self._kept[0][0]
        if number < self._num_stored:
            self.num_lost += max(0, oldest - 1 - number)
        self._num_stored = min(max(number, oldest - 1), self._num_made)
        while len(self._kept) > self._num_kept and self._kept[0][0] <= self._num_stored:
            self._kept.popleft()

    def check_invariants(self) -> None:
        """Raises AssertionError where the numbers contradict each other."""
        numbers = [number for number, _ in self._kept]
        assert numbers == list(range(self._num_made - len(numbers) + 1, self._num_made + 1)), "a batch is missing"
        assert 0 <= self._num_stored <= self._num_made
        assert not numbers or numbers[0] <= self._num_stored + 1, "what the store lacks is kept"
        assert len(self._kept) <= max(self._num_kept, self._num_made - self._num_stored)
        assert len(self._pending) <= self._max_pending

    def _press(self, hour: int) -> None:
        """Counts everything that waits in one hour; what a long outage leaves is bounded by the number of tenants."""
        latest = max(hour, *(each for each, _ in self._pending))
        pressed: dict[tuple[int, TenantId], Counter[Metered]] = {}
        for (_, tenant), counts in self._pending.items():
            pressed.setdefault((latest, tenant), Counter()).update(counts)
        self._pending = dict(list(pressed.items())[: self._max_pending - 1])
