"""What a worker's index should say: its own blocks by domain, kept from the same events that the index gets.

With it the index can be rebuilt at any time without asking the engine. Owned by the publisher, on the event loop. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent


class EventGapError(Exception):
    """Events came out of order or were lost on the way from the engine: a fault of this program."""


class IndexMirror:
    """Digests by domain, in the order in which they were stored: a parent stands before its children."""

    def __init__(self) -> None:
        self._domains: dict[DomainTag, dict[bytes, None]] = {}
        self._last_sequence_number: int | None = None

    def apply(self, events: Iterable[BlockEvent]) -> None:
        """Takes events in. Raises EventGapError where one is missing."""
        for event in events:
            last = self._last_sequence_number
            if last is not None and event.sequence_number != last + 1:
                raise EventGapError(f"event {event.sequence_number} follows event {last}")
            self._last_sequence_number = event.sequence_number
            self._apply(event)

    def snapshot(self) -> dict[DomainTag, bytes]:
        """All blocks: packed digests by domain."""
        return {tag: b"".join(digests) for tag, digests in self._domains.items()}

    @property
    def num_blocks(self) -> int:
        """Digests over all domains."""
        return sum(len(digests) for digests in self._domains.values())

    def _apply(self, event: BlockEvent) -> None:
        if event.change is BlockChange.CLEARED:
            self._domains.pop(event.domain_tag, None)
            return
        digests = [event.digests[at : at + DIGEST_BYTES] for at in range(0, len(event.digests), DIGEST_BYTES)]
        if event.change is BlockChange.STORED:
            self._domains.setdefault(event.domain_tag, {}).update(dict.fromkeys(digests))
            return
        held = self._domains.get(event.domain_tag, {})
        for digest in digests:
            held.pop(digest, None)
        if not held:
            self._domains.pop(event.domain_tag, None)
