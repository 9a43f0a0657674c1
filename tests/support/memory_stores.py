"""Index and registry in this process, both sides: for tests of workers and routers that need no server.

`reachable` turned off makes every call fail; `wipe` is a restart of the store without its data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cache_store.clock import SystemClock
from cache_store.domain import DomainTag
from cache_store.events import BlockEvent
from cache_store.index import Incarnation, IndexUnavailableError
from cache_store.memory_index import MemoryIndex
from cache_store.memory_meter import MemoryMeterStore
from cache_store.memory_registry import MemoryRegistry
from cache_store.registry import RegistryUnavailableError, Renewal, WorkerId, WorkerRecord
from tests.support.memory_quotas import MemoryQuotas
from worker.config import WorkerConfig
from worker.publisher import Stores


class MemoryStores:
    """Implements IndexReader, IndexWriter, RegistryReader and RegistryWriter; `quotas` is what routers published."""

    def __init__(self) -> None:
        self.reachable = True
        self.num_replaced = 0
        self.num_sweeps = 0
        self.quotas = MemoryQuotas()
        self.meter = MemoryMeterStore()
        self.wipe()

    def connect(self, _: WorkerConfig) -> Stores:
        """For `WorkerParts.connect_stores`."""
        return Stores(self, self, self.quotas, self._sweep, self._close, self.meter)

    def wipe(self) -> None:
        """Forgets everything."""
        self._index = MemoryIndex()
        self._registry = MemoryRegistry(SystemClock())

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        self._check_index()
        return await self._index.lookup(domain_tag, digests, incarnations)

    async def apply(self, incarnation: Incarnation, events: Sequence[BlockEvent]) -> None:
        self._check_index()
        await self._index.apply(incarnation, events)

    async def replace(self, incarnation: Incarnation, blocks: Mapping[DomainTag, bytes]) -> None:
        self._check_index()
        await self._index.replace(incarnation, blocks)
        self.num_replaced += 1

    async def drop(self, incarnation: Incarnation) -> None:
        self._check_index()
        await self._index.drop(incarnation)

    async def workers(self) -> list[WorkerRecord]:
        self._check_registry()
        return await self._registry.workers()

    async def renew(self, record: WorkerRecord) -> Renewal:
        self._check_registry()
        return await self._registry.renew(record)

    async def leave(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        self._check_registry()
        await self._registry.leave(worker_id, incarnation)

    async def _sweep(self) -> None:
        self._check_index()
        self.num_sweeps += 1

    async def _close(self) -> None:
        pass

    def _check_index(self) -> None:
        if not self.reachable:
            raise IndexUnavailableError("switched off by the test")

    def _check_registry(self) -> None:
        if not self.reachable:
            raise RegistryUnavailableError("switched off by the test")
