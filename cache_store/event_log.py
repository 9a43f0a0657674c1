"""Block events of one pool since they were last taken: runs of equal domain and change, numbered when taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent


class Named(Protocol):
    """A block of any tier."""

    @property
    def digest(self) -> bytes: ...


class EventLog:
    """Owned by the pool."""

    __slots__ = ("_next", "_runs")

    def __init__(self) -> None:
        self._runs: list[tuple[DomainTag, BlockChange, list[bytes]]] = []
        self._next = 0

    def add(self, tag: DomainTag, change: BlockChange, blocks: Sequence[Named]) -> None:
        """Notes blocks of one domain."""
        digests = [block.digest for block in blocks]
        if self._runs:
            last_tag, last_change, last = self._runs[-1]
            if last_change is change and last_tag == tag:
                last += digests
                return
        self._runs.append((tag, change, digests))

    def drain(self) -> tuple[BlockEvent, ...]:
        """All events since the last call, in order."""
        if not self._runs:
            return ()
        runs, self._runs = self._runs, []
        first = self._next
        self._next += len(runs)
        return tuple(
            [
                BlockEvent(tag, number, change, b"".join(digests))
                for number, (tag, change, digests) in enumerate(runs, start=first)
            ]
        )
