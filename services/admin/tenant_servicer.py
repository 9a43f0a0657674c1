"""TenantAdminService: tenants, keys, quotas and epochs over the control store.

Before a write the router catches up with the store, so that nothing is written on top of one that lost something. After
it, this router's directory has the change before the caller has the answer; other routers have it with their next poll.
Owns no state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog
from stemcache.admin.v1 import admin_pb2 as pb
from stemcache.admin.v1.admin_pb2_grpc import TenantAdminServiceServicer

from cache_store.meter_store import MeterNames, MeterUnavailableError
from services.admin.purge_messages import receipt_message
from services.admin.tenant_messages import api_key_message, quota_change, tenant_message, tenant_messages
from services.router.cache_validation import purge_scope
from services.router.purges import Purges
from services.router.statuses import abort_with
from services.tenants.model import KeyId
from services.tenants.redis_store import Committed, ControlStore
from services.tenants.sync import DirectorySync
from services.tenants.table import ControlTable

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # in quotes: a generic to the type checker only
T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[["TenantServicer", Request, Context], Awaitable[Response]]

_log = structlog.get_logger()


def _answered(method: Method[Request, Response]) -> Method[Request, Response]:
    """Ends the call with the status of whatever `method` raises."""

    @wraps(method)
    async def answered(self: TenantServicer, request: Request, context: Context) -> Response:
        try:
            return await method(self, request, context)
        except Exception as error:  # the edge: nothing may leave without a status of the table
            await abort_with(context, error)

    return answered


class TenantServicer(TenantAdminServiceServicer):
    """The service. Who may call it is decided before it, by `AdminAuthInterceptor`."""

    def __init__(self, store: ControlStore, sync: DirectorySync, purges: Purges, names: MeterNames) -> None:
        """`names` keeps those of deleted tenants, for whoever reads what they have used."""
        self._store = store
        self._sync = sync
        self._purges = purges
        self._names = names

    @_answered
    async def CreateTenant(self, request: pb.CreateTenantRequest, context: Context) -> pb.CreateTenantResponse:
        terms = quota_change(request)
        done = await self._write(lambda: self._store.create_tenant(request.name, terms))
        _log.info("tenant_created", tenant=done.value.name, uuid=done.value.id)
        return pb.CreateTenantResponse(tenant=tenant_message(done.value, done.state.table))

    @_answered
    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsResponse:
        table = await self._read()
        tenants = sorted(table.tenants.values(), key=lambda tenant: tenant.name)
        return pb.ListTenantsResponse(tenants=tenant_messages(tenants, table))

    @_answered
    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Context) -> pb.DeleteTenantResponse:
        tenant = (await self._read()).tenant_by_name(request.name)
        receipt = await self._purges.delete(request.name)
        try:
            await self._names.keep(tenant.id, tenant.name)
        except MeterUnavailableError as error:
            _log.warning("tenant_name_lost", uuid=tenant.id, error=str(error))  # its usage is shown by the uuid
        _log.info("tenant_deleted", tenant=request.name)
        return pb.DeleteTenantResponse(receipt=receipt_message(receipt))

    @_answered
    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, context: Context) -> pb.CreateApiKeyResponse:
        made = (await self._write(lambda: self._store.create_key(request.tenant))).value
        _log.info("api_key_created", tenant=request.tenant, key_id=made.key.key_id)
        return pb.CreateApiKeyResponse(key=api_key_message(made.key), secret=made.text)

    @_answered
    async def ListApiKeys(self, request: pb.ListApiKeysRequest, context: Context) -> pb.ListApiKeysResponse:
        table = await self._read()
        keys = table.keys_of(table.tenant_by_name(request.tenant).id)
        return pb.ListApiKeysResponse(keys=[api_key_message(key) for key in keys])

    @_answered
    async def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, context: Context) -> pb.RevokeApiKeyResponse:
        await self._write(lambda: self._store.revoke_key(KeyId(request.key_id)))
        _log.info("api_key_revoked", key_id=request.key_id)
        return pb.RevokeApiKeyResponse()

    @_answered
    async def RotateEpoch(self, request: pb.RotateEpochRequest, context: Context) -> pb.RotateEpochResponse:
        done, receipt = await self._purges.rotate(request.tenant)
        _log.info("epoch_rotated", tenant=request.tenant)
        tenant = tenant_message(done.value, done.state.table)
        return pb.RotateEpochResponse(tenant=tenant, receipt=receipt_message(receipt))

    @_answered
    async def PurgeTenantCache(
        self, request: pb.PurgeTenantCacheRequest, context: Context
    ) -> pb.PurgeTenantCacheResponse:
        scope = purge_scope(request)
        tenant = (await self._read()).tenant_by_name(request.tenant)
        receipt = await self._purges.purge(tenant.id, scope)
        return pb.PurgeTenantCacheResponse(receipt=receipt_message(receipt))

    @_answered
    async def SetTenantQuota(self, request: pb.SetTenantQuotaRequest, context: Context) -> pb.SetTenantQuotaResponse:
        change = quota_change(request)
        done = await self._write(lambda: self._store.set_quota(request.tenant, change))
        _log.info("tenant_quota_set", tenant=request.tenant, generation=done.state.generation)
        return pb.SetTenantQuotaResponse(tenant=tenant_message(done.value, done.state.table))

    @_answered
    async def ExportTenants(self, request: pb.ExportTenantsRequest, context: Context) -> pb.ExportTenantsResponse:
        await self._sync.sync_once()
        return pb.ExportTenantsResponse(document=await self._store.export_document())

    @_answered
    async def ImportTenants(self, request: pb.ImportTenantsRequest, context: Context) -> pb.ImportTenantsResponse:
        counts = (await self._write(lambda: self._store.import_document(request.document))).value
        _log.info("tenants_imported", num_tenants=counts.num_tenants, num_keys=counts.num_keys)
        return pb.ImportTenantsResponse(tenants=counts.num_tenants, keys=counts.num_keys)

    async def _read(self) -> ControlTable:
        return (await self._sync.sync_once()).table

    async def _write(self, write: Callable[[], Awaitable[Committed[T]]]) -> Committed[T]:
        await self._sync.sync_once()
        done = await write()
        await self._sync.adopt(done.state)
        return done
