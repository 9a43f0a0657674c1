"""Publishes the quotas that are in force, the fences of all tenants and the adapters, so that workers learn them.

It does so whenever what stands there is missing, older than what this router knows, or has not been refreshed for a
while. Every router does it, and one of them is enough. A router whose control data is stale leaves it to the others.
One event loop owns the state. Knows no Redis.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import Protocol

import structlog

from cache_store.clock import Clock
from cache_store.errors import CorruptDataError, UnavailableError, VersionError
from cache_store.fence import FenceTable
from cache_store.quota_document import QUOTA_VERSION, Published, QuotaDocument, read_head, write_published
from services.tenants.adapter import published as adapters_of
from services.tenants.directory import TenantDirectory
from services.tenants.guarantees import quotas_in_force, shortfalls
from services.tenants.state import ControlState

PUBLISH_S = 0.5
"""How often what is published is looked at."""

REFRESH_S = 10.0
"""Age at which the same quotas are published again. A worker that has those of another store, now lost, takes what was
published later; so it does in the end, also where routers' clocks differ a little."""

ABANDONED_S = 3 * REFRESH_S
"""Age of quotas that no router refreshes any more: nobody knows them."""

_log = structlog.get_logger()


class QuotaStore(Protocol):
    """Where quotas are published. Every method raises UnavailableError."""

    async def read_head(self) -> bytes: ...

    async def write(self, expected_head: bytes, document: QuotaDocument) -> None: ...


class QuotaPublisher:
    """State of one router."""

    def __init__(self, store: QuotaStore, directory: TenantDirectory, cluster_key: bytes, clock: Clock) -> None:
        self._store = store
        self._directory = directory
        self._cluster_key = cluster_key
        self._clock = clock
        self._problem: str | None = None
        self._warned_generation = 0

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            await self.publish()
            await asyncio.sleep(PUBLISH_S)

    async def publish(self) -> None:
        """Looks once, and writes where there is something to write. A store that is away is tried again later."""
        state = self._directory.state
        if state.head is None or self._directory.is_stale:
            return
        self._warn(state)
        try:
            await self._publish(state, state.head.store_id)
        except UnavailableError as error:
            self._note(str(error))
            return
        self._note(None)

    async def _publish(self, state: ControlState, store_id: str) -> None:
        raw = await self._store.read_head()
        if not self._is_due(raw, state.generation, store_id):
            return
        document = await asyncio.to_thread(self._document, state, store_id)  # thousands of tenants take a while
        await self._store.write(raw, document)
        _log.debug("quotas_published", generation=state.generation)

    def _document(self, state: ControlState, store_id: str) -> QuotaDocument:
        published = Published(quotas_in_force(state), fences_of(state), adapters_of(state.table.adapters.values()))
        return write_published(self._cluster_key, store_id, published, self._clock.unix_s())

    def _is_due(self, raw: bytes, generation: int, store_id: str) -> bool:
        if not raw:
            return True
        try:
            head = read_head(self._cluster_key, raw)
        except CorruptDataError as error:
            _log.warning("published_quotas_replaced", reason=str(error))
            return True
        except VersionError as error:
            return not isinstance(error.found, int) or error.found < QUOTA_VERSION  # a later build's are left alone
        age_s = abs(self._clock.unix_s() - head.publish_unix_s)
        if head.store_id != store_id or head.generation < generation:
            return True
        return age_s >= (REFRESH_S if head.generation == generation else ABANDONED_S)

    def _warn(self, state: ControlState) -> None:
        """Names guarantees that are not in force, once per generation."""
        if state.generation == self._warned_generation:
            return
        self._warned_generation = state.generation
        for each in shortfalls(state.table):
            _log.warning(
                "guarantee_not_in_force",
                tenant=each.tenant_name,
                tier=each.tier.value,
                guaranteed=each.minimum,
                in_force=each.in_force,
            )

    def _note(self, problem: str | None) -> None:
        if problem is not None and self._problem is None:
            _log.warning("quotas_not_published", reason=problem)
        if problem is None and self._problem is not None:
            _log.info("quotas_published_again")
        self._problem = problem


def fences_of(state: ControlState) -> FenceTable:
    """Up to where the cache of each living tenant was purged, and how many of its keys were revoked."""
    fences = {tenant.id: tenant.fence for tenant in state.table.tenants.values()}
    revoked = {tenant: count for tenant, count in state.table.num_revoked_keys().items() if tenant in fences}
    return FenceTable(state.generation, MappingProxyType(fences), MappingProxyType(revoked))
