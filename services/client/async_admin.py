"""The operator's API, asyncio: what the console asks. Owns one channel; only reads."""

from __future__ import annotations

from stemcache.admin.v1 import admin_pb2 as pb
from stemcache.admin.v1.admin_pb2_grpc import ClusterServiceStub, TenantAdminServiceStub
from stemcache.worker.v1 import block_map_pb2

from services.client import admin_messages as messages
from services.client.admin_results import ClusterStatus, Explanation, RequestRecord, Tenant
from services.client.channel import async_channel, credential_metadata
from services.client.errors import api_errors
from services.tls import Trust

LOOK_TIMEOUT_S = 10.0


class AsyncAdminReader:
    """Calls `address` (host:port of the admin port) as the operator. Every method raises ApiError."""

    def __init__(self, address: str, admin_token: str, trust: Trust | None = None) -> None:
        self._metadata = credential_metadata(admin_token)
        self._channel = async_channel(address, trust)
        self._tenants = TenantAdminServiceStub(self._channel)
        self._cluster = ClusterServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the channel. Idempotent."""
        await self._channel.close()

    async def status(self) -> ClusterStatus:
        """How the router and its workers are."""
        with api_errors():
            response = await self._cluster.GetStatus(
                pb.GetStatusRequest(), timeout=LOOK_TIMEOUT_S, metadata=self._metadata
            )
        return messages.status_of(response)

    async def list_tenants(self) -> tuple[Tenant, ...]:
        """All tenants, by name."""
        with api_errors():
            response = await self._tenants.ListTenants(
                pb.ListTenantsRequest(), timeout=LOOK_TIMEOUT_S, metadata=self._metadata
            )
        return tuple(messages.tenant_of(each) for each in response.tenants)

    async def request_records(self, num_most: int, tenant: str = "") -> tuple[RequestRecord, ...]:
        """The last requests of the router, newest first."""
        request = pb.ListRequestRecordsRequest(max_records=num_most, tenant=tenant)
        with api_errors():
            response = await self._cluster.ListRequestRecords(request, timeout=LOOK_TIMEOUT_S, metadata=self._metadata)
        return tuple(messages.record_of(each) for each in response.records)

    async def explain_request(self, tenant: str, request_id: str) -> Explanation:
        """Why a recent request went where it went, and reused what it did."""
        request = pb.ExplainRequestRequest(tenant=tenant, request_id=request_id)
        with api_errors():
            response = await self._cluster.ExplainRequest(request, timeout=LOOK_TIMEOUT_S, metadata=self._metadata)
        return messages.explanation_of(response)

    async def block_map(self, worker_id: str, request_id: str = "") -> block_map_pb2.BlockMap:
        """Where a worker's blocks lie; those of `request_id` whatever else is left out."""
        request = pb.GetBlockMapRequest(worker_id=worker_id, request_id=request_id)
        with api_errors():
            response = await self._cluster.GetBlockMap(request, timeout=LOOK_TIMEOUT_S, metadata=self._metadata)
        return response.block_map
