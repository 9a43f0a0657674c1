"""Which worker holds which blocks: a hint that routes requests. Stale entries cost a miss, never a wrong token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NewType, Protocol

from cache_store.domain import DomainTag
from cache_store.events import BlockEvent

Incarnation = NewType("Incarnation", str)
"""Names one life of a worker process: 32 hex digits, fresh at every start."""


class IndexUnavailableError(Exception):
    """The index cannot be reached or does not answer; routing goes on without it."""

    def __init__(self, reason: str, known: Mapping[Incarnation, int] = MappingProxyType({})) -> None:
        """`known`: leading blocks as of the time when the index was last heard of; absent is 0."""
        super().__init__(reason)
        self.known = known


class IndexReader(Protocol):
    """The router's side."""

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        """Leading blocks of the chain `digests` (16 bytes each, parent first) that each incarnation holds.

        Every incarnation asked for is in the answer, 0 where it holds none. Relies on prefix closure: who holds a block
        holds its ancestors. Raises IndexUnavailableError.
        """
        ...


class IndexWriter(Protocol):
    """The worker's side, for one incarnation."""

    async def apply(self, incarnation: Incarnation, events: Sequence[BlockEvent]) -> None:
        """Writes events in their order; those written before are skipped. One writer per incarnation.

        Raises IndexUnavailableError, also where sequence numbers are missing or the store has lost writes; then
        `replace` must follow. `apply` of no events only finds out whether writes were lost.
        """
        ...

    async def replace(self, incarnation: Incarnation, blocks: Mapping[DomainTag, bytes]) -> None:
        """Makes `blocks` (packed digests, parent first) all that it holds. Raises IndexUnavailableError."""
        ...

    async def drop(self, incarnation: Incarnation) -> None:
        """Forgets an incarnation, at once for every reader. Raises IndexUnavailableError."""
        ...
