"""One tenant's sequences at one engine, and the order in which those that wait are tried.

Preempted ones first, then those that would reuse most, within a window of the oldest; nobody is overtaken for longer
than a bound. The order of one tenant's queue tells that tenant only. State of the scheduler, which owns it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cache_store.domain import TenantId
from worker.sequence import ActiveRequest, Age, Sequence

WINDOW = 8
"""So many of the oldest that wait are compared by what they would reuse."""

MAX_OVERTAKEN_S = 2.0
"""Who has been overtaken for that long is next."""

EXPECTATION_S = 1.0
"""How long the expected reuse of a sequence that waits is believed."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a sequence lacked when it was tried."""

    num_blocks: int
    num_places: int


def by_age(sequence: Sequence) -> Age:
    """Sort key: oldest first."""
    return sequence.age


class TenantQueue:
    """Waiting sequences hold nothing; running ones hold blocks and places. Both are ordered by age."""

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.shortage: Shortage | None = None
        """Of the sequence that could not be started last, where others hold what it lacks."""
        self.short_since_s = 0.0

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.running

    @property
    def has_work(self) -> bool:
        """Whether something of it can be computed or tried."""
        return bool(self.running) or not all(sequence.waits_for_swap for sequence in self.waiting)

    @property
    def is_loading(self) -> bool:
        """Whether blocks are on their way for it."""
        return any(sequence.waits_for_swap for sequence in self.waiting)

    @property
    def is_backlogged(self) -> bool:
        """Whether there is a prompt to compute."""
        return bool(self.waiting) or any(sequence.is_prefilling for sequence in self.running)

    @property
    def num_places(self) -> int:
        """Samples that run."""
        return sum(len(sequence.samples) for sequence in self.running)

    def wait(self, sequence: Sequence) -> None:
        """Takes a sequence into the queue."""
        insort(self.waiting, sequence, key=by_age)

    def start(self, sequence: Sequence, now_s: float) -> None:
        """A sequence that waited runs."""
        self.waiting.remove(sequence)
        sequence.overtaken_s = None
        for other in self.waiting:
            if other.age > sequence.age:
                break
            if other.overtaken_s is None and not other.waits_for_others:
                other.overtaken_s = now_s
        self.run(sequence)
        self.shortage = None

    def run(self, sequence: Sequence) -> None:
        """A sequence runs that never waited."""
        insort(self.running, sequence, key=by_age)

    def fall_short(self, shortage: Shortage, now_s: float) -> None:
        """A sequence could not be started."""
        if self.shortage is None:
            self.short_since_s = now_s
        self.shortage = shortage

    def candidates(self, now_s: float, refresh: Callable[[Sequence], None]) -> Iterator[Sequence]:
        """Those that wait for no others, best first. `refresh` estimates anew what a sequence would reuse."""
        ready = [sequence for sequence in self.waiting if not sequence.waits_for_others]
        if ready and ready[0].overtaken_s is not None and now_s - ready[0].overtaken_s >= MAX_OVERTAKEN_S:
            yield ready.pop(0)
        for start in range(0, len(ready), WINDOW):
            window = ready[start : start + WINDOW]
            for sequence in window:
                if now_s - sequence.expected_at_s > EXPECTATION_S:
                    refresh(sequence)
            yield from sorted(window, key=_preference)

    def requests(self) -> dict[ActiveRequest, list[Sequence]]:
        """Running sequences by request, oldest first."""
        running: dict[ActiveRequest, list[Sequence]] = {}
        for sequence in self.running:
            running.setdefault(sequence.owner, []).append(sequence)
        return running

    def check_invariants(self) -> None:
        """Raises AssertionError where the queues contradict themselves."""
        for queue in (self.waiting, self.running):
            ages = [sequence.age for sequence in queue]
            assert ages == sorted(set(ages)), "a queue is out of order or holds a sequence twice"
            assert all(sequence.owner.domain.tenant == self.tenant for sequence in queue), "a foreign sequence"
        assert all(sequence.is_at_rest for sequence in self.waiting), "a sequence waits and holds something"
        for sequence in self.running:
            assert sequence.id is not None
            assert sequence.num_remaining >= 1, "a running sequence has nothing to compute"
        assert not self.is_empty, "a queue without sequences is forgotten"
        assert self.shortage is None or self.waiting, "nobody lacks anything"


def _preference(sequence: Sequence) -> tuple[bool, int, Age]:
    return (not sequence.is_stopped, 0 if sequence.is_stopped else -sequence.num_expected, sequence.age)
