"""The index in memory: for one process, and the oracle of the contract suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexUnavailableError
from cache_store.index_sequence import EventSequence, SequenceGapError


class MemoryIndex:
    """IndexReader and IndexWriter at once; owned by one event loop."""

    def __init__(self) -> None:
        self._blocks: dict[Incarnation, dict[DomainTag, set[bytes]]] = {}
        self._sequences: dict[Incarnation, EventSequence] = {}
        self._in_doubt: set[Incarnation] = set()

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        """See IndexReader."""
        return {incarnation: self._count(incarnation, domain_tag, digests) for incarnation in incarnations}

    async def apply(self, incarnation: Incarnation, events: Sequence[BlockEvent]) -> None:
        """See IndexWriter."""
        if incarnation in self._in_doubt:
            raise IndexUnavailableError("events were lost; replace the incarnation's blocks")
        try:
            admitted = self._sequences.setdefault(incarnation, EventSequence()).admit(events)
        except SequenceGapError as error:
            self._in_doubt.add(incarnation)
            raise IndexUnavailableError(f"{error}; replace the incarnation's blocks") from error
        for event in admitted:
            held = self._blocks.setdefault(incarnation, {}).setdefault(event.domain_tag, set())
            if event.change is BlockChange.STORED:
                held.update(_each(event.digests))
            elif event.change is BlockChange.CLEARED:
                held.clear()
            else:
                held.difference_update(_each(event.digests))

    async def replace(self, incarnation: Incarnation, blocks: Mapping[DomainTag, bytes]) -> None:
        """See IndexWriter."""
        self._blocks[incarnation] = {tag: set(_each(digests)) for tag, digests in blocks.items()}
        self._sequences.setdefault(incarnation, EventSequence()).restart()
        self._in_doubt.discard(incarnation)

    async def drop(self, incarnation: Incarnation) -> None:
        """See IndexWriter."""
        self._blocks.pop(incarnation, None)
        self._sequences.pop(incarnation, None)
        self._in_doubt.discard(incarnation)

    def _count(self, incarnation: Incarnation, domain_tag: DomainTag, digests: bytes) -> int:
        held = self._blocks.get(incarnation, {}).get(domain_tag, set())
        count = 0
        for digest in _each(digests):
            if digest not in held:
                break
            count += 1
        return count


def _each(digests: bytes) -> Iterator[bytes]:
    for start in range(0, len(digests), DIGEST_BYTES):
        yield digests[start : start + DIGEST_BYTES]
