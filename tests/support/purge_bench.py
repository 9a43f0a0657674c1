# ruff: noqa: N802 - the names are the contract's
"""The purging side of one router over a real store, and workers whose acknowledgements are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from redis.asyncio import Redis
from stemcache.v1 import cache_pb2
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.domain import TenantId
from cache_store.errors import NotFoundError
from cache_store.fence import FenceNotice
from cache_store.fence_document import verify_notice
from cache_store.memory_registry import MemoryRegistry
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from services.router.purge_notices import PurgeNotices
from services.router.purges import Purges
from services.router.registry_view import RegistryView
from services.router.worker_client import WorkerPool
from services.tenants.quota_publisher import QuotaPublisher
from tests.support.control import RouterControl
from tests.support.memory_quotas import MemoryQuotas
from tests.support.worker_records import worker_record

KEY = b"k" * 32


class ScriptedPurge(worker_pb2_grpc.WorkerServiceServicer):
    """Acknowledges, unless `how` is "hangs" or "refuses"; "restarted" answers as another incarnation, "busy" cannot
    count yet."""

    def __init__(self, name: str, how: str = "acknowledges") -> None:
        self.name = name
        self.how = how
        self.notices: list[FenceNotice] = []

    async def Purge(self, request: worker_pb2.PurgeRequest, context: Any) -> worker_pb2.PurgeResponse:
        assert request.protocol_version == PROTOCOL_VERSION
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "refuses":
            await context.abort(grpc.StatusCode.INTERNAL, "secret words of the worker")
        self.notices.append(verify_notice(KEY, request.fence))
        if self.how == "busy":
            return worker_pb2.PurgeResponse(incarnation=self.name, counts_pending=True)
        return worker_pb2.PurgeResponse(
            incarnation="another" if self.how == "restarted" else self.name,
            purged_blocks=cache_pb2.BlocksByTier(device_blocks=5, host_blocks=3, disk_blocks=2),
            held_blocks=1,
        )


class PurgeBench:
    """One router: control data, publisher, view of workers, purges."""

    def __init__(self, redis: Redis, folder: Path, published: MemoryQuotas | None = None) -> None:
        self.control = RouterControl(redis, folder)
        self.published = published or MemoryQuotas()
        self.pool = WorkerPool()
        self.registry = MemoryRegistry(self.control.clock)
        self.view = RegistryView(self.registry, self.control.clock, {}, self.pool.lose, self.pool.is_there)
        self.publisher = QuotaPublisher(self.published, self.control.directory, KEY, self.control.clock)
        self.purges = Purges(
            self.control.store,
            self.control.sync,
            self.control.directory,
            self.publisher,
            PurgeNotices(self.view, self.pool, KEY),
            self._model_named,
            self.control.clock,
        )

    async def see(self, *records: WorkerRecord) -> None:
        """Has the workers in its view."""
        for record in records:
            await self.registry.renew(record)
        await self.view.poll()

    def _model_named(self, tenant: TenantId, name: str) -> str:
        if name != "m":
            raise NotFoundError(f"model {name!r} is not served here")
        return name


@asynccontextmanager
async def purge_bench(redis: Redis, folder: Path) -> AsyncIterator[PurgeBench]:
    """A bench whose channels are closed in the end."""
    bench = PurgeBench(redis, folder)
    try:
        yield bench
    finally:
        await bench.pool.close()


@asynccontextmanager
async def scripted_workers(*hows: str) -> AsyncIterator[tuple[list[WorkerRecord], list[ScriptedPurge]]]:
    """Workers w0, w1, … on loopback."""
    servers, records, scripts = [], [], []
    try:
        for at, how in enumerate(hows):
            server, script = grpc.aio.server(), ScriptedPurge(f"w{at}", how)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(script, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            servers.append(server)
            scripts.append(script)
            records.append(worker_record(script.name, address=f"127.0.0.1:{port}"))
        yield records, scripts
    finally:
        for server in servers:
            await server.stop(0)
