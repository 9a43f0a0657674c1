"""Follows the sequence numbers of a worker's events, so that none is lost unnoticed and none is written twice."""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.digest import DIGEST_BYTES
from cache_store.events import BlockEvent


class SequenceGapError(Exception):
    """Events between two that arrived are missing."""


class EventSequence:
    """Last number that was admitted; owned by the writer of one incarnation."""

    def __init__(self) -> None:
        self._last: int | None = None

    def admit(self, events: Sequence[BlockEvent]) -> list[BlockEvent]:
        """Those of `events` that were not admitted before, in order. Raises SequenceGapError.

        The first event ever may have any number, as after a `restart`.
        """
        last = self._last
        admitted = []
        for event in events:
            assert len(event.digests) % DIGEST_BYTES == 0, "digests have 16 bytes each"
            if last is not None and event.sequence_number <= last:
                continue
            if last is not None and event.sequence_number > last + 1:
                raise SequenceGapError(f"events {last + 1} to {event.sequence_number - 1} are missing")
            last = event.sequence_number
            admitted.append(event)
        self._last = last
        return admitted

    def restart(self) -> None:
        """Takes the next event whatever its number is: what was before it has been written as a whole."""
        self._last = None
