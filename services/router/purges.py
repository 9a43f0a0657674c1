"""Purges: what of a tenant's cache is to be forgotten is written down first, then published and told to workers.

The control data goes first, so that an end between any two steps leaves nothing reachable that was to be purged: this
router derives other domains from then on, others do with their next poll, and workers come up to the published fences.
Whoever is cut off serves without reuse once its control data is older than the bound; a purge is complete then, at the
latest. A purge that is repeated is one more purge. Owned by one event loop; holds no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import structlog

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.errors import StemcacheError
from cache_store.fence import Fence, FenceNotice
from services.router.block_counts import BlockCounts
from services.router.purge_notices import PurgeNotices, WorkerAnswer
from services.tenants.directory import CONTROL_AGE_BOUND_S, TenantDirectory
from services.tenants.model import Tenant
from services.tenants.purge import ModelScope, PurgeScope
from services.tenants.quota_publisher import QuotaPublisher
from services.tenants.redis_store import Committed, ControlStore
from services.tenants.state import ControlState
from services.tenants.sync import DirectorySync

T = TypeVar("T")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PurgeReceipt:
    """What a purge did."""

    purge_unix_s: float
    """From then on this router's requests reach nothing of it."""
    generation: int
    """Of the control data that carries it."""
    workers: tuple[WorkerAnswer, ...]
    complete_unix_s: float
    """From then on nobody's do."""

    @property
    def num_acknowledged(self) -> int:
        """Workers that have forgotten it."""
        return sum(answer.acknowledgement is not None for answer in self.workers)

    @property
    def num_uncounted(self) -> int:
        """Of those that acknowledged, the ones that could not tell yet what they had of it."""
        return sum(each.acknowledgement is not None and not each.acknowledgement.is_counted for each in self.workers)

    @property
    def num_pending(self) -> int:
        """Workers that did not answer."""
        return len(self.workers) - self.num_acknowledged

    @property
    def purged(self) -> BlockCounts:
        """What those that acknowledged had of it."""
        given = (each.acknowledgement.purged for each in self.workers if each.acknowledgement)
        return reduce(add, given, BlockCounts())


class Purges:
    """Purges caches of tenants. Every method raises UnavailableError where the control data cannot be written."""

    def __init__(
        self,
        store: ControlStore,
        sync: DirectorySync,
        directory: TenantDirectory,
        publisher: QuotaPublisher,
        notices: PurgeNotices,
        model_named: Callable[[TenantId, str], object],
        clock: Clock,
    ) -> None:
        """`model_named` raises NotFoundError for a model that does not exist for the tenant: a slip must not look like
        a purge.
        """
        self._store = store
        self._sync = sync
        self._directory = directory
        self._publisher = publisher
        self._notices = notices
        self._model_named = model_named
        self._clock = clock

    async def purge(self, tenant: TenantId, scope: PurgeScope) -> PurgeReceipt:
        """Forgets a scope of a tenant's cache. Raises NotFoundError for a model that nobody serves."""
        if isinstance(scope, ModelScope):
            self._model_named(tenant, scope.model)
        done = await self._write(lambda: self._store.purge(tenant, scope))
        return await self._spread(tenant, done.value.fence, done.state)

    async def rotate(self, tenant_name: str) -> tuple[Committed[Tenant], PurgeReceipt]:
        """Gives a tenant a fresh epoch and has everything before it forgotten. Raises NotFoundError."""
        done = await self._write(lambda: self._store.rotate_epoch(tenant_name))
        return done, await self._spread(done.value.id, done.value.fence, done.state)

    async def delete(self, tenant_name: str) -> PurgeReceipt:
        """Ends a tenant and its keys and has all that it cached forgotten. Raises NotFoundError."""
        done = await self._write(lambda: self._store.delete_tenant(tenant_name))
        return await self._spread(done.value, None, done.state)

    async def _write(self, write: Callable[[], Awaitable[Committed[T]]]) -> Committed[T]:
        """On top of what this router knows, so that nothing is written on a store that has lost something."""
        await self._sync.sync_once()
        return await write()

    async def _spread(self, tenant: TenantId, fence: Fence | None, state: ControlState) -> PurgeReceipt:
        notice = FenceNotice(tenant, fence, state.generation)
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(self._try_to_take(notice, state))
            telling = group.create_task(self._notices.tell(notice))
        purge_s = taking.result()
        if isinstance(purge_s, StemcacheError):
            raise purge_s  # it is written and workers were told; who asks again gets a receipt
        receipt = PurgeReceipt(purge_s, state.generation, telling.result(), purge_s + CONTROL_AGE_BOUND_S)
        _log.info(
            "cache_purged",
            uuid=tenant,
            generation=state.generation,
            acknowledged_workers=receipt.num_acknowledged,
            pending_workers=receipt.num_pending,
        )
        return receipt

    async def _try_to_take(self, notice: FenceNotice, state: ControlState) -> float | StemcacheError:
        """What goes wrong here keeps no worker from being told."""
        try:
            return await self._take(notice, state)
        except StemcacheError as error:
            return error

    async def _take(self, notice: FenceNotice, state: ControlState) -> float:
        """Into this router's directory, from then on nothing is reached through it; then to workers that read."""
        await self._sync.adopt(state)
        if not self._is_known(notice):  # others wrote meanwhile, and what they wrote comes with a poll
            await self._sync.sync_once()
        purge_s = self._clock.unix_s()
        await self._publisher.publish()
        return purge_s

    def _is_known(self, notice: FenceNotice) -> bool:
        known = self._directory.tenant_by_id(notice.tenant)
        return known is None or (notice.fence is not None and known.fence.order >= notice.fence.order)
