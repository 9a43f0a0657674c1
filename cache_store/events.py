"""What happened to the blocks of a worker, for whoever keeps an index of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cache_store.domain import DomainTag


class BlockChange(StrEnum):
    """What happened."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"
    """All of the domain is gone."""


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """Blocks of one domain that came or went, under the incarnation of the worker that tells it."""

    domain_tag: DomainTag
    sequence_number: int
    """Counts up by one per event of an incarnation; a gap means that events were lost."""
    change: BlockChange
    digests: bytes
    """16 bytes each; stored: parent first, removed: child first, cleared: none."""
