"""Index and registry in this process, both sides: for tests of workers and routers that need no server.

`reachable` turned off makes every call fail, `wipe` is a restart without data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexUnavailableError
from cache_store.registry import LEASE_S, RegistryUnavailableError, Renewal, WorkerId, WorkerRecord
from worker.config import WorkerConfig
from worker.publisher import Stores


class MemoryStores:
    """Implements IndexReader, IndexWriter, RegistryReader and RegistryWriter."""

    def __init__(self) -> None:
        self.reachable = True
        self.blocks: dict[Incarnation, dict[DomainTag, set[bytes]]] = {}
        self._leases: dict[Incarnation, tuple[WorkerRecord, float]] = {}

    def connect(self, _: WorkerConfig) -> Stores:
        """For `WorkerParts.connect_stores`."""
        return Stores(index=self, registry=self, close=self._close)

    def wipe(self) -> None:
        """Forgets everything."""
        self.blocks.clear()
        self._leases.clear()

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        self._check_index()
        chain = _split(digests)
        found = {}
        for incarnation in incarnations:
            held = self.blocks.get(incarnation, {}).get(domain_tag, set())
            found[incarnation] = next((at for at, digest in enumerate(chain) if digest not in held), len(chain))
        return found

    async def apply(self, incarnation: Incarnation, events: Sequence[BlockEvent]) -> None:
        self._check_index()
        domains = self.blocks.setdefault(incarnation, {})
        for event in events:
            held = domains.setdefault(event.domain_tag, set())
            digests = set(_split(event.digests))
            held.update(digests) if event.change is BlockChange.STORED else held.difference_update(digests)

    async def replace(self, incarnation: Incarnation, blocks: Mapping[DomainTag, bytes]) -> None:
        self._check_index()
        self.blocks[incarnation] = {tag: set(_split(digests)) for tag, digests in blocks.items()}

    async def drop(self, incarnation: Incarnation) -> None:
        self._check_index()
        self.blocks.pop(incarnation, None)

    async def workers(self) -> list[WorkerRecord]:
        self._check_registry()
        now_s = time.monotonic()
        live = [record for record, renewed_s in self._leases.values() if now_s - renewed_s < LEASE_S]
        newest = {record.worker_id: record for record in live}
        return [newest[worker_id] for worker_id in sorted(newest)]

    async def renew(self, record: WorkerRecord) -> Renewal:
        self._check_registry()
        kept = self._leases.pop(record.incarnation, None)
        self._leases[record.incarnation] = (record, time.monotonic())
        return Renewal.NEW if kept is None or time.monotonic() - kept[1] >= LEASE_S else Renewal.KEPT

    async def leave(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        self._check_registry()
        self._leases.pop(incarnation, None)

    async def _close(self) -> None:
        pass

    def _check_index(self) -> None:
        if not self.reachable:
            raise IndexUnavailableError("switched off by the test")

    def _check_registry(self) -> None:
        if not self.reachable:
            raise RegistryUnavailableError("switched off by the test")


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
