"""The blocking client of the operator's API. Owns one channel.

Calls that change something are not retried by the channel (see `services/client/channel.py`): a key that was made
twice would be one key too many.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from stemcache.admin.v1 import admin_pb2 as pb
from stemcache.admin.v1 import usage_pb2 as usage_pb
from stemcache.admin.v1.admin_pb2_grpc import AdapterServiceStub, ClusterServiceStub, TenantAdminServiceStub
from stemcache.admin.v1.usage_pb2_grpc import UsageServiceStub

from cache_store.tls_files import Component
from services.client import admin_messages as messages
from services.client.adapter_results import LoadedAdapter, adapter_of
from services.client.admin_requests import USUAL_TERMS, TenantTerms
from services.client.admin_results import (
    ApiKey,
    ClusterStatus,
    DrainedWorker,
    Explanation,
    ImportCounts,
    NewApiKey,
    PurgeReceipt,
    RequestRecord,
    Rotated,
    Tenant,
)
from services.client.channel import CALL_TIMEOUT_S, credential_metadata, sync_channel
from services.client.errors import api_errors
from services.client.messages import duration_message
from services.client.purge_scope import PurgeScope, fill_scope
from services.client.quota_advice import QuotaAdvice, advice_of
from services.client.usage_requests import admin_usage_message
from services.client.usage_results import UsageReport, report_of
from services.tls import Trust

DRAIN_TIMEOUT_S = 180.0
"""Beyond the time that running requests get: a worker gives away what it has cached."""

LOAD_TIMEOUT_S = 120.0
"""Workers read an adapter and say so before the router answers."""


class AdminClient:
    """Calls `address` (host:port of the admin port) as the operator. Every method raises ApiError."""

    def __init__(
        self, address: str, admin_token: str, timeout_s: float = CALL_TIMEOUT_S, trust: Trust | None = None
    ) -> None:
        self._metadata = credential_metadata(admin_token)
        self._timeout_s = timeout_s
        self._channel = sync_channel(address, trust, Component.ROUTER)
        self._tenants = TenantAdminServiceStub(self._channel)
        self._cluster = ClusterServiceStub(self._channel)
        self._adapters = AdapterServiceStub(self._channel)
        self._usage = UsageServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel. Idempotent."""
        self._channel.close()

    def create_tenant(self, name: str, terms: TenantTerms = USUAL_TERMS) -> Tenant:
        """Makes a tenant, with other than the usual quota and limits where `terms` says so."""
        request = pb.CreateTenantRequest(name=name)
        messages.fill_terms(request, terms)
        with api_errors():
            response = self._tenants.CreateTenant(request, timeout=self._timeout_s, metadata=self._metadata)
        return messages.tenant_of(response.tenant)

    def list_tenants(self) -> tuple[Tenant, ...]:
        """All tenants, by name."""
        with api_errors():
            response = self._tenants.ListTenants(
                pb.ListTenantsRequest(), timeout=self._timeout_s, metadata=self._metadata
            )
        return tuple(messages.tenant_of(each) for each in response.tenants)

    def set_quota(self, tenant: str, terms: TenantTerms) -> Tenant:
        """Changes what `terms` names of a tenant's quota and limits; in force on all workers within seconds."""
        request = pb.SetTenantQuotaRequest(tenant=tenant)
        messages.fill_terms(request, terms)
        with api_errors():
            response = self._tenants.SetTenantQuota(request, timeout=self._timeout_s, metadata=self._metadata)
        return messages.tenant_of(response.tenant)

    def delete_tenant(self, name: str) -> PurgeReceipt:
        """Removes a tenant and its keys; nothing that it cached can be reached again."""
        request = pb.DeleteTenantRequest(name=name)
        with api_errors():
            response = self._tenants.DeleteTenant(request, timeout=self._timeout_s, metadata=self._metadata)
        return messages.receipt_of(response.receipt)

    def rotate_epoch(self, tenant: str) -> Rotated:
        """Gives a tenant a fresh epoch: everything that it cached is forgotten."""
        request = pb.RotateEpochRequest(tenant=tenant)
        with api_errors():
            response = self._tenants.RotateEpoch(request, timeout=self._timeout_s, metadata=self._metadata)
        return Rotated(messages.tenant_of(response.tenant), messages.receipt_of(response.receipt))

    def purge_cache(self, tenant: str, scope: PurgeScope) -> PurgeReceipt:
        """Forgets what a tenant has cached in a scope. ApiNotFoundError for a model that nobody serves."""
        request = pb.PurgeTenantCacheRequest(tenant=tenant)
        fill_scope(request, scope)
        with api_errors():
            response = self._tenants.PurgeTenantCache(request, timeout=self._timeout_s, metadata=self._metadata)
        return messages.receipt_of(response.receipt)

    def create_api_key(self, tenant: str) -> NewApiKey:
        """Makes a key. Its secret is told here and never again."""
        request = pb.CreateApiKeyRequest(tenant=tenant)
        with api_errors():
            response = self._tenants.CreateApiKey(request, timeout=self._timeout_s, metadata=self._metadata)
        return NewApiKey(messages.api_key_of(response.key), response.secret)

    def list_api_keys(self, tenant: str) -> tuple[ApiKey, ...]:
        """Keys of a tenant, oldest first, without secrets."""
        request = pb.ListApiKeysRequest(tenant=tenant)
        with api_errors():
            response = self._tenants.ListApiKeys(request, timeout=self._timeout_s, metadata=self._metadata)
        return tuple(messages.api_key_of(each) for each in response.keys)

    def revoke_api_key(self, key_id: str) -> None:
        """Ends a key. Idempotent."""
        request = pb.RevokeApiKeyRequest(key_id=key_id)
        with api_errors():
            self._tenants.RevokeApiKey(request, timeout=self._timeout_s, metadata=self._metadata)

    def export_tenants(self) -> bytes:
        """All tenants and keys as one document, secrets wrapped by the master key."""
        with api_errors():
            response = self._tenants.ExportTenants(
                pb.ExportTenantsRequest(), timeout=self._timeout_s, metadata=self._metadata
            )
        return response.document

    def import_tenants(self, document: bytes) -> ImportCounts:
        """Reads such a document; changes nothing where it is refused."""
        request = pb.ImportTenantsRequest(document=document)
        with api_errors():
            response = self._tenants.ImportTenants(request, timeout=self._timeout_s, metadata=self._metadata)
        return ImportCounts(response.tenants, response.keys)

    def status(self) -> ClusterStatus:
        """How the router and its workers are."""
        with api_errors():
            response = self._cluster.GetStatus(pb.GetStatusRequest(), timeout=self._timeout_s, metadata=self._metadata)
        return messages.status_of(response)

    def drain_worker(self, worker_id: str, grace_s: float) -> DrainedWorker:
        """Lets a worker leave; returns when it does. Requests that run there after `grace_s` go on elsewhere."""
        request = pb.DrainWorkerRequest(worker_id=worker_id, grace_duration=duration_message(grace_s))
        timeout_s = grace_s + DRAIN_TIMEOUT_S
        with api_errors():
            response = self._cluster.DrainWorker(request, timeout=timeout_s, metadata=self._metadata)
        return DrainedWorker(response.moved_blocks, response.cached_blocks, response.handed_over_requests)

    def explain_request(self, tenant: str, request_id: str) -> Explanation:
        """Why a recent request went where it went, and reused what it did."""
        request = pb.ExplainRequestRequest(tenant=tenant, request_id=request_id)
        with api_errors():
            response = self._cluster.ExplainRequest(request, timeout=self._timeout_s, metadata=self._metadata)
        return messages.explanation_of(response)

    def request_record(self, tenant: str, request_id: str) -> RequestRecord:
        """The record of a recent request, with the terms of its routing."""
        request = pb.GetRequestRecordRequest(tenant=tenant, request_id=request_id)
        with api_errors():
            response = self._cluster.GetRequestRecord(request, timeout=self._timeout_s, metadata=self._metadata)
        return messages.record_of(response)

    def usage(
        self, tenant: str = "", since_unix_s: float | None = None, until_unix_s: float | None = None
    ) -> UsageReport:
        """What tenants have used, with each hour; of all that is kept where no time is named."""
        request = admin_usage_message(tenant, since_unix_s, until_unix_s)
        with api_errors():
            response = self._usage.GetUsage(request, timeout=self._timeout_s, metadata=self._metadata)
        return report_of(response)

    def advise_quota(self, tenant: str) -> QuotaAdvice:
        """What the tenant's cache hits would be with more or less room."""
        request = usage_pb.AdviseQuotaRequest(tenant=tenant)
        with api_errors():
            response = self._usage.AdviseQuota(request, timeout=self._timeout_s, metadata=self._metadata)
        return advice_of(response)

    def load_adapter(
        self, name: str, folder: str, base_model: str = "", tenants: tuple[str, ...] = ()
    ) -> LoadedAdapter:
        """Loads a LoRA adapter on all workers of its model, in place of another one of its name.

        `base_model` is empty where one model is served; `tenants` are those that may call it, none: everybody.
        """
        request = pb.LoadAdapterRequest(name=name, folder=folder, base_model=base_model, tenants=tenants)
        with api_errors():
            response = self._adapters.LoadAdapter(request, timeout=LOAD_TIMEOUT_S, metadata=self._metadata)
        return adapter_of(response.adapter)

    def unload_adapter(self, name: str) -> tuple[str, ...]:
        """Forgets an adapter and what was cached of it; workers that have not said yet that they did."""
        request = pb.UnloadAdapterRequest(name=name)
        with api_errors():
            response = self._adapters.UnloadAdapter(request, timeout=self._timeout_s, metadata=self._metadata)
        return tuple(response.pending_workers)

    def list_adapters(self) -> tuple[LoadedAdapter, ...]:
        """All adapters that are loaded, by name, with what workers say of each."""
        with api_errors():
            response = self._adapters.ListAdapters(
                pb.ListAdaptersRequest(), timeout=self._timeout_s, metadata=self._metadata
            )
        return tuple(adapter_of(each) for each in response.adapters)
