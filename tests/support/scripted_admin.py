# ruff: noqa: N802 - the names are the contract's
"""An admin port whose answers are scripted: for tests of what the command line makes of them."""

from __future__ import annotations

import grpc
from stemcache.admin.v1 import admin_pb2 as pb
from stemcache.admin.v1 import admin_pb2_grpc as rpc
from stemcache.v1 import cache_pb2
from stemcache.worker.v1 import block_map_pb2


def receipt() -> pb.PurgeReceipt:
    """Of three workers: one did not answer, one could not count."""
    made = pb.PurgeReceipt(control_generation=7)
    made.purge_time.FromSeconds(1_700_000_000)
    made.complete_time.FromSeconds(1_700_000_010)
    made.workers.add(
        worker_id="worker-0",
        incarnation="a" * 32,
        acknowledged=True,
        purged_blocks=cache_pb2.BlocksByTier(device_blocks=5, host_blocks=3, disk_blocks=2),
        held_blocks=1,
    )
    made.workers.add(worker_id="worker-1", incarnation="b" * 32, error="the worker is gone")
    made.workers.add(worker_id="worker-2", incarnation="c" * 32, acknowledged=True, counts_pending=True)
    return made


class ScriptedAdmin(rpc.TenantAdminServiceServicer, rpc.ClusterServiceServicer, rpc.AdapterServiceServicer):
    """Keeps tenants in a dictionary and answers one status."""

    def __init__(self) -> None:
        self.address = ""
        self.token = ""
        self.tenants: dict[str, pb.Tenant] = {}
        self.keys: dict[str, pb.ApiKey] = {}
        self.terms: list[pb.CreateTenantRequest | pb.SetTenantQuotaRequest] = []
        """Requests that set quotas."""
        self.purges: list[pb.PurgeTenantCacheRequest] = []
        self.loads: list[pb.LoadAdapterRequest] = []
        self.adapters: list[pb.Adapter] = []
        """What is loaded; the first is what loading answers."""
        self.drains: list[pb.DrainWorkerRequest] = []
        self.status = pb.GetStatusResponse(version="9.9", control_generation=3)
        self.records: list[pb.GetRequestRecordResponse] = []
        self.block_map = block_map_pb2.BlockMap()

    def _enter(self, context: grpc.ServicerContext) -> None:
        self.token = dict(context.invocation_metadata()).get("authorization", "")

    def _tenant(self, name: str, context: grpc.ServicerContext) -> pb.Tenant:
        if name not in self.tenants:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no tenant {name!r}")
        return self.tenants[name]

    def CreateTenant(self, request: pb.CreateTenantRequest, context: grpc.ServicerContext) -> pb.CreateTenantResponse:
        self._enter(context)
        if request.name in self.tenants:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"there is a tenant {request.name!r}")
        self.terms.append(request)
        self.tenants[request.name] = pb.Tenant(
            name=request.name,
            uuid="u-1",
            quota=pb.TenantQuota(
                tiers=[pb.TierShare(tier="device", min=0.0, max=1.0)],
                weight=1.0,
                max_pinned=0.1,
                audit_share=0.001,
            ),
        )
        return pb.CreateTenantResponse(tenant=self.tenants[request.name])

    def ListTenants(self, request: pb.ListTenantsRequest, context: grpc.ServicerContext) -> pb.ListTenantsResponse:
        return pb.ListTenantsResponse(tenants=[self.tenants[name] for name in sorted(self.tenants)])

    def SetTenantQuota(
        self, request: pb.SetTenantQuotaRequest, context: grpc.ServicerContext
    ) -> pb.SetTenantQuotaResponse:
        self.terms.append(request)
        return pb.SetTenantQuotaResponse(tenant=self._tenant(request.tenant, context))

    def DeleteTenant(self, request: pb.DeleteTenantRequest, context: grpc.ServicerContext) -> pb.DeleteTenantResponse:
        self._tenant(request.name, context)
        del self.tenants[request.name]
        return pb.DeleteTenantResponse(receipt=receipt())

    def RotateEpoch(self, request: pb.RotateEpochRequest, context: grpc.ServicerContext) -> pb.RotateEpochResponse:
        tenant = self._tenant(request.tenant, context)
        tenant.epoch_time.FromSeconds(1_700_000_000)
        return pb.RotateEpochResponse(tenant=tenant, receipt=receipt())

    def PurgeTenantCache(
        self, request: pb.PurgeTenantCacheRequest, context: grpc.ServicerContext
    ) -> pb.PurgeTenantCacheResponse:
        self._tenant(request.tenant, context)
        self.purges.append(request)
        return pb.PurgeTenantCacheResponse(receipt=receipt())

    def CreateApiKey(self, request: pb.CreateApiKeyRequest, context: grpc.ServicerContext) -> pb.CreateApiKeyResponse:
        self._tenant(request.tenant, context)
        self.keys["k1"] = pb.ApiKey(key_id="k1")
        return pb.CreateApiKeyResponse(key=self.keys["k1"], secret="sc-k1-secret")

    def ListApiKeys(self, request: pb.ListApiKeysRequest, context: grpc.ServicerContext) -> pb.ListApiKeysResponse:
        return pb.ListApiKeysResponse(keys=list(self.keys.values()))

    def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, context: grpc.ServicerContext) -> pb.RevokeApiKeyResponse:
        self.keys[request.key_id].revoked = True
        return pb.RevokeApiKeyResponse()

    def ExportTenants(
        self, request: pb.ExportTenantsRequest, context: grpc.ServicerContext
    ) -> pb.ExportTenantsResponse:
        return pb.ExportTenantsResponse(document=b'{"tenants": 1}')

    def ImportTenants(
        self, request: pb.ImportTenantsRequest, context: grpc.ServicerContext
    ) -> pb.ImportTenantsResponse:
        if request.document != b'{"tenants": 1}':
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the MAC of the document does not fit")
        return pb.ImportTenantsResponse(tenants=1, keys=2)

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        return self.status

    def DrainWorker(self, request: pb.DrainWorkerRequest, context: grpc.ServicerContext) -> pb.DrainWorkerResponse:
        self._enter(context)
        if request.worker_id != "worker-0":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no worker {request.worker_id!r} serves now")
        self.drains.append(request)
        return pb.DrainWorkerResponse(moved_blocks=90, cached_blocks=100, handed_over_requests=2)

    def GetRequestRecord(
        self, request: pb.GetRequestRecordRequest, context: grpc.ServicerContext
    ) -> pb.GetRequestRecordResponse:
        term = pb.RouteTerm(worker_id="worker-0", matched_tokens=16, queue_s=0.5, prefill_s=1.0, cost=4.5)
        return pb.GetRequestRecordResponse(tenant=request.tenant, request_id=request.request_id, terms=[term])

    def ListRequestRecords(
        self, request: pb.ListRequestRecordsRequest, context: grpc.ServicerContext
    ) -> pb.ListRequestRecordsResponse:
        return pb.ListRequestRecordsResponse(records=self.records)

    def ExplainRequest(
        self, request: pb.ExplainRequestRequest, context: grpc.ServicerContext
    ) -> pb.ExplainRequestResponse:
        record = next(each for each in self.records if each.request_id == request.request_id)
        return pb.ExplainRequestResponse(
            worker_id=record.terms[0].worker_id, route=record.tenant, reuse=record.request_id, record=record
        )

    def GetBlockMap(self, request: pb.GetBlockMapRequest, context: grpc.ServicerContext) -> pb.GetBlockMapResponse:
        return pb.GetBlockMapResponse(block_map=self.block_map)

    def LoadAdapter(self, request: pb.LoadAdapterRequest, context: grpc.ServicerContext) -> pb.LoadAdapterResponse:
        self.loads.append(request)
        if not self.adapters:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.folder} is no folder")
        return pb.LoadAdapterResponse(adapter=self.adapters[0])

    def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: grpc.ServicerContext
    ) -> pb.UnloadAdapterResponse:
        if request.name not in [each.name for each in self.adapters]:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no adapter named {request.name!r} is loaded")
        return pb.UnloadAdapterResponse(pending_workers=["worker-1"])

    def ListAdapters(self, request: pb.ListAdaptersRequest, context: grpc.ServicerContext) -> pb.ListAdaptersResponse:
        return pb.ListAdaptersResponse(adapters=self.adapters)
