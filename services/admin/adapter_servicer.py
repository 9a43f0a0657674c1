"""AdapterService: from calls to loads and unloads of adapters and back. Owns no state.

Who may call it is decided before it, by `AdminAuthInterceptor`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc
from stemcache.admin.v1 import admin_pb2 as pb
from stemcache.admin.v1.admin_pb2_grpc import AdapterServiceServicer

from cache_store.domain import TenantId
from services.router.adapter_control import AdapterControl, AdapterStatus, LoadRequest, WorkerState
from services.router.messages import timestamp
from services.router.statuses import abort_with
from services.tenants.directory import TenantDirectory

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # in quotes: a generic to the type checker only

_STATES = {
    WorkerState.PENDING: pb.WorkerAdapter.STATE_UNSPECIFIED,
    WorkerState.SERVED: pb.WorkerAdapter.STATE_SERVED,
    WorkerState.FAILED: pb.WorkerAdapter.STATE_FAILED,
}


class AdapterServicer(AdapterServiceServicer):
    """The service."""

    def __init__(self, directory: TenantDirectory, adapters: AdapterControl) -> None:
        self._directory = directory
        self._adapters = adapters

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Context) -> pb.LoadAdapterResponse:
        tenants = tuple(request.tenants) or None
        try:
            status = await self._adapters.load(LoadRequest(request.name, request.folder, request.base_model, tenants))
        except Exception as error:  # the edge: nothing may leave without a status of the table
            await abort_with(context, error)
        return pb.LoadAdapterResponse(adapter=self._message(status))

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, context: Context) -> pb.UnloadAdapterResponse:
        try:
            pending = await self._adapters.unload(request.name)
        except Exception as error:  # the edge
            await abort_with(context, error)
        return pb.UnloadAdapterResponse(pending_workers=pending)

    async def ListAdapters(self, request: pb.ListAdaptersRequest, context: Context) -> pb.ListAdaptersResponse:
        try:
            found = await self._adapters.list()
        except Exception as error:  # the edge
            await abort_with(context, error)
        return pb.ListAdaptersResponse(adapters=[self._message(each) for each in found])

    def _message(self, status: AdapterStatus) -> pb.Adapter:
        adapter = status.adapter
        return pb.Adapter(
            name=adapter.name,
            base_model=adapter.base,
            folder=adapter.folder,
            digest=adapter.digest.hex(),
            tenants=sorted(self._tenant_name(each) for each in adapter.tenants or ()),
            load_time=timestamp(adapter.change_unix_s),
            workers=[
                pb.WorkerAdapter(worker_id=each.worker_id, state=_STATES[each.state], error=each.error)
                for each in status.workers
            ],
        )

    def _tenant_name(self, tenant_id: TenantId) -> str:
        tenant = self._directory.tenant_by_id(tenant_id)
        return tenant.name if tenant else tenant_id
