"""Asks a worker where its blocks lie, for the operator. Owned by one event loop; holds no state."""

from __future__ import annotations

from collections.abc import Callable

from stemcache.worker.v1 import block_map_pb2, worker_pb2

from cache_store.domain import TenantId
from cache_store.errors import NotFoundError
from cache_store.look_token import sign_look
from cache_store.registry import PROTOCOL_VERSION
from services.router.registry_view import RegistryView
from services.router.worker_client import WorkerPool

WAIT_S = 8.0


class BlockMaps:
    """Of the workers that one router sees."""

    def __init__(self, view: RegistryView, pool: WorkerPool, cluster_key: bytes) -> None:
        self._view = view
        self._pool = pool
        self._cluster_key = cluster_key

    async def read(
        self, worker_id: str, request_id: str, tenant_name: Callable[[TenantId], str]
    ) -> block_map_pb2.BlockMap:
        """The blocks of a worker; those of `request_id` whatever else is left out.

        Raises NotFoundError, and WorkerLostError or DeadlineError where it does not answer.
        """
        worker = next((record for record in self._view.records() if record.worker_id == worker_id), None)
        if worker is None:
            raise NotFoundError(f"no worker {worker_id!r} serves now; `stemcache status` lists those that do")
        request = worker_pb2.ReadBlockMapRequest(
            protocol_version=PROTOCOL_VERSION,
            look_token=sign_look(self._cluster_key, worker.incarnation, self._view.token_expiry_s(worker)),
            request_id=request_id,
        )
        response = await self._pool.ask(worker, lambda stub: stub.ReadBlockMap(request, timeout=WAIT_S))
        block_map = response.block_map
        names = [tenant_name(TenantId(each)) for each in block_map.tenants]
        del block_map.tenants[:]
        block_map.tenants.extend(names)
        return block_map
