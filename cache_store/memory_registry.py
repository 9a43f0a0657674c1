"""The registry of workers in memory: for one process, and the oracle of the contract suite."""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.index import Incarnation
from cache_store.registry import LEASE_S, Renewal, SupersededError, WorkerId, WorkerRecord
from cache_store.registry_record import read_record, write_record


@dataclass(frozen=True, slots=True)
class _Lease:
    record: bytes
    ends_s: float


class MemoryRegistry:
    """RegistryReader and RegistryWriter at once; owned by one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._incarnations: dict[WorkerId, list[Incarnation]] = {}
        self._leases: dict[Incarnation, _Lease] = {}

    async def workers(self) -> list[WorkerRecord]:
        """See RegistryReader."""
        newest = ((worker_id, known[-1]) for worker_id, known in sorted(self._incarnations.items()))
        return [
            read_record(worker_id, incarnation, self._leases[incarnation].record)
            for worker_id, incarnation in newest
            if self._is_live(incarnation)
        ]

    async def renew(self, record: WorkerRecord) -> Renewal:
        """See RegistryWriter."""
        known = self._incarnations.setdefault(record.worker_id, [])
        if record.incarnation not in known:
            known.append(record.incarnation)
        elif known[-1] != record.incarnation:
            raise SupersededError(f"worker {record.worker_id} has a newer incarnation than {record.incarnation}")
        renewal = Renewal.KEPT if self._is_live(record.incarnation) else Renewal.NEW
        self._leases[record.incarnation] = _Lease(write_record(record), self._clock.monotonic_s() + LEASE_S)
        return renewal

    async def leave(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        """See RegistryWriter. A lease is its incarnation's own, so it never ends a successor's."""
        del worker_id
        self._leases.pop(incarnation, None)

    def _is_live(self, incarnation: Incarnation) -> bool:
        lease = self._leases.get(incarnation)
        return lease is not None and lease.ends_s > self._clock.monotonic_s()
