"""Block events of one pool since they were last taken: runs of equal domain and change, numbered when taken."""

from __future__ import annotations

from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent


class EventLog:
    """Owned by the pool."""

    __slots__ = ("_next", "_runs")

    def __init__(self) -> None:
        self._runs: list[tuple[DomainTag, BlockChange, bytearray]] = []
        self._next = 0

    def add(self, tag: DomainTag, change: BlockChange, digest: bytes) -> None:
        """Notes one block."""
        if self._runs:
            last_tag, last_change, digests = self._runs[-1]
            if last_change is change and last_tag == tag:
                digests += digest
                return
        self._runs.append((tag, change, bytearray(digest)))

    def drain(self) -> tuple[BlockEvent, ...]:
        """All events since the last call, in order."""
        runs, self._runs = self._runs, []
        first = self._next
        self._next += len(runs)
        return tuple(
            BlockEvent(tag, number, change, bytes(digests))
            for number, (tag, change, digests) in enumerate(runs, start=first)
        )
