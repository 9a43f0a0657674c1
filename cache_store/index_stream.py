"""Block events as bytes: what a worker appends to its stream of changes, one entry for each batch that it writes.

An entry holds its events one after the other: one byte for the change, 16 for the domain tag, the number of digests as
uint32, the digests. All numbers are little-endian. The layout belongs to `redis_keys.SCHEMA_VERSION`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.errors import CorruptDataError
from cache_store.events import BlockChange, BlockEvent

_HEAD = Struct("<B16sI")
_CODES = {BlockChange.STORED: 1, BlockChange.REMOVED: 2, BlockChange.CLEARED: 3}
_CHANGES = {code: change for change, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class StreamedChange:
    """One event without its number: entries are numbered, not events."""

    domain_tag: DomainTag
    change: BlockChange
    digests: bytes
    """Packed."""


def pack_events(events: Iterable[BlockEvent]) -> bytes:
    """Events of one entry, in their order."""
    parts: list[bytes] = []
    for event in events:
        parts += (_HEAD.pack(_CODES[event.change], event.domain_tag, len(event.digests) // DIGEST_BYTES), event.digests)
    return b"".join(parts)


def unpack_events(data: bytes) -> list[StreamedChange]:
    """Raises CorruptDataError for bytes that `pack_events` has not made."""
    changes: list[StreamedChange] = []
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise CorruptDataError("an entry of the index's stream ends inside an event")
        code, tag, num_digests = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        at = start + num_digests * DIGEST_BYTES
        if code not in _CHANGES or at > len(data):
            raise CorruptDataError("an entry of the index's stream is none of this layout")
        changes.append(StreamedChange(DomainTag(tag), _CHANGES[code], data[start:at]))
    return changes
