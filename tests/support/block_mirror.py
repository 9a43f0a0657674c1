"""What an index would know of a worker: block events applied in order, every promise about them asserted."""

from __future__ import annotations

from collections.abc import Iterable

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent


class BlockMirror:
    """Digests by domain, from events alone."""

    def __init__(self) -> None:
        self._next = 0
        self.blocks: dict[DomainTag, set[bytes]] = {}

    def apply(self, events: Iterable[BlockEvent]) -> None:
        """Takes events; a gap, a block stored twice or one removed twice is an error."""
        for event in events:
            assert event.sequence_number == self._next, "events were lost"
            self._next += 1
            held = self.blocks.setdefault(event.domain_tag, set())
            if event.change is BlockChange.CLEARED:
                assert held, "a domain is cleared that has no blocks"
                assert not event.digests
                held.clear()
            for digest in split(event.digests):
                if event.change is BlockChange.STORED:
                    assert digest not in held, "stored twice"
                    held.add(digest)
                else:
                    held.remove(digest)

    def assert_equals(self, snapshot: dict[DomainTag, bytes]) -> None:
        """The snapshot is what the events told."""
        told = {tag: held for tag, held in self.blocks.items() if held}
        assert {tag: set(split(digests)) for tag, digests in snapshot.items()} == told


def split(digests: bytes) -> list[bytes]:
    """Packed digests one by one."""
    return [digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)]
