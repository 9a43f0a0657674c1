"""What tenants used, in memory: the oracle of the other store, and what tests run on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from cache_store.domain import TenantId
from cache_store.meter_batches import MeterBatch, MeterLine
from cache_store.meter_store import MeterUnavailableError, MeterWriterId
from cache_store.metered import Metered


class MemoryMeterStore:
    """MeterStore of one process."""

    def __init__(self) -> None:
        self._last: dict[MeterWriterId, int] = {}
        self._hours: dict[int, dict[TenantId, Counter[Metered]]] = {}
        self.is_reachable = True
        """For tests of outages."""

    async def add(self, writer: MeterWriterId, batch: MeterBatch) -> int:
        """See MeterStore."""
        self._require()
        last = self._last.get(writer, 0)
        if batch.number <= last or batch.number > max(last + 1, batch.oldest):
            return last
        for line in batch.lines:
            self._hours.setdefault(line.hour, {}).setdefault(line.tenant, Counter()).update(line.counts)
        self._last[writer] = batch.number
        return batch.number

    async def read(self, first_hour: int, end_hour: int, tenant: TenantId | None) -> list[MeterLine]:
        """See MeterStore."""
        self._require()
        return [
            MeterLine(hour, each, Counter(counts))
            for hour in sorted(hour for hour in self._hours if first_hour <= hour < end_hour)
            for each, counts in sorted(self._hours[hour].items())
            if tenant is None or each == tenant
        ]

    def _require(self) -> None:
        if not self.is_reachable:
            raise MeterUnavailableError("the store is away")


class MemoryMeterNames:
    """MeterNames of one process."""

    def __init__(self) -> None:
        self._names: dict[TenantId, str] = {}

    async def keep(self, tenant: TenantId, name: str) -> None:
        """See MeterNames."""
        self._names[tenant] = name

    async def of(self, tenants: Collection[TenantId]) -> Mapping[TenantId, str]:
        """See MeterNames."""
        return {each: self._names[each] for each in tenants if each in self._names}
