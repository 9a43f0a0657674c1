"""Loads and unloads adapters: checked here, written into the control data, published, and awaited from the workers.

The folder is read by this router first: what names the adapter is the digest of what it holds at that moment, and a
worker that finds something else there serves nothing. Workers follow what is published, those that come later too, so
that nothing has to be told to one that starts again. Where every worker refuses an adapter the control data goes back
to what it had; where some do, it stays and the answer names them. One load or unload at a time. Owned by one event
loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from cache_store.adapter_files import read_adapter
from cache_store.adapters import AdapterReport, checked_name
from cache_store.clock import Clock
from cache_store.errors import InvalidRequestError, NotFoundError
from cache_store.registry import RENEW_S, WorkerId, WorkerRecord
from services.router.registry_view import RegistryView
from services.router.served_models import ServedModels
from services.tenants.adapter import LoadedAdapter
from services.tenants.quota_publisher import QuotaPublisher
from services.tenants.redis_store import Change, ControlStore
from services.tenants.sync import DirectorySync

LOAD_WAIT_S = 60.0
"""For workers to say what became of an adapter."""

UNLOAD_WAIT_S = 10.0

_log = structlog.get_logger()


class WorkerState(StrEnum):
    """What a worker says of an adapter."""

    PENDING = "pending"
    SERVED = "served"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WorkerAdapter:
    """An adapter on one worker."""

    worker_id: WorkerId
    state: WorkerState
    error: str


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """An adapter and what the workers of its model say of it."""

    adapter: LoadedAdapter
    workers: tuple[WorkerAdapter, ...]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What to load. `base` is empty where one model is served; `tenants` None: for everybody."""

    name: str
    folder: str
    base: str
    tenants: tuple[str, ...] | None


class AdapterControl:
    """Adapters of the cluster, through one router."""

    def __init__(
        self,
        store: ControlStore,
        sync: DirectorySync,
        publisher: QuotaPublisher,
        view: RegistryView,
        models: ServedModels,
        clock: Clock,
    ) -> None:
        self._store = store
        self._sync = sync
        self._publisher = publisher
        self._view = view
        self._models = models
        self._clock = clock
        self._turn = asyncio.Lock()

    async def load(self, request: LoadRequest) -> AdapterStatus:
        """Loads an adapter on all workers of its model, in place of another one of its name.

        Raises InvalidRequestError where the folder, or every worker, refuses it; NotFoundError for a model or tenant
        that is not there; PreconditionError where too many are loaded; UnavailableError.
        """
        async with self._turn:
            checked_name(request.name)
            base = self._base(request)
            table = (await self._sync.sync_once()).table
            tenants = None
            if request.tenants is not None:
                tenants = frozenset(table.tenant_by_name(each).id for each in request.tenants)
            content = await asyncio.to_thread(read_adapter, Path(request.folder))
            adapter = LoadedAdapter(request.name, base, str(content.folder), content.digest, tenants, 0, 0.0)
            del content  # its bytes are not needed while workers are awaited
            change = await self._store.load_adapter(adapter)
            await self._spread(change)
            status = await self._await_reports(change.after.table.adapters[request.name])
            if status.workers and all(each.state is WorkerState.FAILED for each in status.workers):
                await self._spread(await self._undo(change, request.name))
                raise InvalidRequestError("folder", status.workers[0].error)
            _log.info("adapter_loaded", adapter=request.name, base=base, num_workers=len(status.workers))
            return status

    async def unload(self, name: str) -> tuple[WorkerId, ...]:
        """Takes an adapter away; workers that have not let go of it yet. Raises NotFoundError."""
        async with self._turn:
            await self._sync.sync_once()
            await self._spread(await self._store.unload_adapter(name))
            ends_s = self._clock.monotonic_s() + UNLOAD_WAIT_S
            while (pending := self._holders(name)) and self._clock.monotonic_s() < ends_s:  # noqa: ASYNC110 - polled
                await asyncio.sleep(RENEW_S / 2)
            _log.info("adapter_unloaded", adapter=name, num_pending=len(pending))
            return pending

    async def list(self) -> tuple[AdapterStatus, ...]:
        """All adapters that are loaded, by name."""
        adapters = (await self._sync.sync_once()).table.adapters
        return tuple(self._status(adapters[name]) for name in sorted(adapters) if adapters[name].is_loaded)

    def _base(self, request: LoadRequest) -> str:
        models = self._models.models()
        if request.name in models:
            raise InvalidRequestError("name", f"{request.name!r} is the name of a model; give the adapter another one")
        if not request.base and len(models) == 1:
            return models[0]
        if not request.base:
            served = ", ".join(models) or "none yet"
            raise InvalidRequestError("base_model", f"name the model that the adapter is for; served are: {served}")
        if request.base not in models:
            served = ", ".join(models) or "none yet"
            raise NotFoundError(f"model {request.base[:64]!r} is not served here; served are: {served}")
        return request.base

    async def _undo(self, change: Change, name: str) -> Change:
        """Back to what was loaded under the name before."""
        before = change.before.table.adapters.get(name)
        if before is not None and before.is_loaded:
            return await self._store.load_adapter(before)
        return await self._store.unload_adapter(name)

    async def _spread(self, change: Change) -> None:
        """Into this router's directory, then to workers."""
        await self._sync.adopt(change.after)
        await self._sync.sync_once()  # others may have written meanwhile
        await self._publisher.publish()

    async def _await_reports(self, adapter: LoadedAdapter) -> AdapterStatus:
        ends_s = self._clock.monotonic_s() + LOAD_WAIT_S
        while True:
            status = self._status(adapter)
            is_pending = any(each.state is WorkerState.PENDING for each in status.workers)
            if not is_pending or self._clock.monotonic_s() >= ends_s:
                return status
            await asyncio.sleep(RENEW_S / 2)

    def _status(self, adapter: LoadedAdapter) -> AdapterStatus:
        records = (record for record in self._view.records() if record.model == adapter.base)
        return AdapterStatus(adapter, tuple(_on_worker(adapter, record) for record in records))

    def _holders(self, name: str) -> tuple[WorkerId, ...]:
        records = self._view.records()
        return tuple(record.worker_id for record in records if any(each.name == name for each in record.adapters))


def _on_worker(adapter: LoadedAdapter, record: WorkerRecord) -> WorkerAdapter:
    report: AdapterReport | None = next(
        (each for each in record.adapters if (each.name, each.digest) == (adapter.name, adapter.digest)), None
    )
    if report is None:
        return WorkerAdapter(record.worker_id, WorkerState.PENDING, "")
    return WorkerAdapter(record.worker_id, WorkerState.FAILED if report.error else WorkerState.SERVED, report.error)
