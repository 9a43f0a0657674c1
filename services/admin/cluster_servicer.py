"""ClusterService: how this router and its workers are, who uses their blocks, and records of recent requests.

Reads, and lets workers leave; owns no state. Who may call it is decided before it, by `AdminAuthInterceptor`.
"""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Any, TypeAlias

import grpc
from stemcache.admin.v1 import admin_pb2 as pb
from stemcache.admin.v1.admin_pb2_grpc import ClusterServiceServicer

from cache_store.domain import TenantId
from cache_store.errors import NotFoundError, StemcacheError
from cache_store.redis_replica import ReplicaStats
from services.admin.worker_messages import worker_message
from services.router.block_maps import BlockMaps
from services.router.condition import Condition, Degraded
from services.router.explain import Miss, explain
from services.router.messages import cached_by_tier, duration, timestamp
from services.router.records import Arrived, Ended, FirstToken, RequestRecord, RequestRecords, Routed
from services.router.registry_view import RegistryView
from services.router.routing import RouteRule, RouteTerm
from services.router.statuses import abort_with
from services.router.traffic import TenantTraffic
from services.router.worker_drains import WorkerDrains
from services.tenants.directory import TenantDirectory

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # in quotes: a generic to the type checker only

_RULES = {
    RouteRule.COST: pb.ROUTE_RULE_COST,
    RouteRule.AFFINITY: pb.ROUTE_RULE_AFFINITY,
    RouteRule.TIE: pb.ROUTE_RULE_TIE,
    RouteRule.REPLICATION: pb.ROUTE_RULE_REPLICATION,
}

_MISSES = {
    Miss.UNKNOWN: pb.MISS_REASON_UNSPECIFIED,
    Miss.NONE: pb.MISS_REASON_NONE,
    Miss.BYPASSED: pb.MISS_REASON_BYPASSED,
    Miss.STALE_CONTROL_DATA: pb.MISS_REASON_STALE_CONTROL_DATA,
    Miss.GONE: pb.MISS_REASON_GONE,
    Miss.LOAD: pb.MISS_REASON_LOAD,
    Miss.AFFINITY: pb.MISS_REASON_AFFINITY,
    Miss.OTHER_FORMAT: pb.MISS_REASON_OTHER_FORMAT,
    Miss.EVICTED: pb.MISS_REASON_EVICTED,
    Miss.PURGED: pb.MISS_REASON_PURGED,
    Miss.DIFFERS: pb.MISS_REASON_DIFFERS,
    Miss.NEVER_STORED: pb.MISS_REASON_NEVER_STORED,
    Miss.SHORT_MATCH: pb.MISS_REASON_SHORT_MATCH,
    Miss.REPLICATED: pb.MISS_REASON_REPLICATED,
}

_DEGRADED = {
    Degraded.CONTROL_DATA: pb.DEGRADED_REASON_CONTROL_DATA,
    Degraded.REGISTRY: pb.DEGRADED_REASON_REGISTRY,
    Degraded.RENEWALS: pb.DEGRADED_REASON_RENEWALS,
    Degraded.INDEX: pb.DEGRADED_REASON_INDEX,
    Degraded.LIMITS: pb.DEGRADED_REASON_LIMITS,
}

DRAIN_GRACE_S = 30.0
"""What a worker's requests get to end where the operator does not say."""

USUAL_RECORDS, MAX_RECORDS_TOLD = 50, 500

_NEVER_S = 86_400.0 * 365
"""Age of control data that was never read: a duration knows no infinity."""


class ClusterServicer(ClusterServiceServicer):
    """The service."""

    def __init__(
        self,
        directory: TenantDirectory,
        view: RegistryView,
        records: RequestRecords,
        condition: Condition,
        drains: WorkerDrains,
        block_maps: BlockMaps,
    ) -> None:
        self._directory = directory
        self._view = view
        self._records = records
        self._condition = condition
        self._drains = drains
        self._block_maps = block_maps

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        age_s = self._directory.age_s()
        condition = self._condition
        reasons = condition.reasons()
        return pb.GetStatusResponse(
            version=version("stemcache"),
            degraded=bool(reasons),
            control_age=duration(age_s if math.isfinite(age_s) else _NEVER_S),
            control_generation=self._directory.generation,
            workers=[worker_message(record, self._tenant_name) for record in self._view.records()],
            refused_workers=self._view.refused,
            running_requests=condition.num_running,
            degraded_reasons=[_DEGRADED[reason] for reason in reasons],
            planned_requests=condition.counts.num_planned,
            degraded_requests=condition.counts.num_degraded,
            index_copy=_index_copy(condition.index),
            console_url=condition.console_url,
            traffic=[_traffic(name, each) for name, each in sorted(condition.traffic.tenants.items())],
            metrics_address=condition.metrics_address,
        )

    def _tenant_name(self, tenant_id: TenantId) -> str:
        """Its name; the id of one that does not live."""
        tenant = self._directory.tenant_by_id(tenant_id)
        return tenant.name if tenant else tenant_id

    async def GetRequestRecord(
        self, request: pb.GetRequestRecordRequest, context: Context
    ) -> pb.GetRequestRecordResponse:
        return _record(await self._find(request.tenant, request.request_id, context))

    async def ExplainRequest(self, request: pb.ExplainRequestRequest, context: Context) -> pb.ExplainRequestResponse:
        record = await self._find(request.tenant, request.request_id, context)
        explanation = explain(record)
        return pb.ExplainRequestResponse(
            worker_id=explanation.worker_id,
            route=explanation.route,
            miss_reason=_MISSES[explanation.miss],
            reuse=explanation.reuse,
            first_missing_token=explanation.first_missing_token,
            record=_record(record),
        )

    async def DrainWorker(self, request: pb.DrainWorkerRequest, context: Context) -> pb.DrainWorkerResponse:
        grace_s = DRAIN_GRACE_S
        if request.HasField("grace_duration"):
            grace_s = request.grace_duration.ToNanoseconds() / 1e9
        try:
            drained = await self._drains.drain(request.worker_id, grace_s)
        except StemcacheError as error:
            await abort_with(context, error)
        return pb.DrainWorkerResponse(
            moved_blocks=drained.moved_blocks,
            cached_blocks=drained.cached_blocks,
            handed_over_requests=drained.handed_over_requests,
        )

    async def ListRequestRecords(
        self, request: pb.ListRequestRecordsRequest, context: Context
    ) -> pb.ListRequestRecordsResponse:
        num_most = min(request.max_records or USUAL_RECORDS, MAX_RECORDS_TOLD)
        latest = self._records.latest(num_most, request.tenant)
        return pb.ListRequestRecordsResponse(records=[_record(each) for each in latest])

    async def GetBlockMap(self, request: pb.GetBlockMapRequest, context: Context) -> pb.GetBlockMapResponse:
        try:
            block_map = await self._block_maps.read(request.worker_id, request.request_id, self._tenant_name)
        except StemcacheError as error:
            await abort_with(context, error)
        return pb.GetBlockMapResponse(block_map=block_map)

    async def _find(self, tenant: str, request_id: str, context: Context) -> RequestRecord:
        record = self._records.find(tenant, request_id)
        if record is None:
            error = NotFoundError("this router remembers no such request; it keeps the last ones that it ran itself")
            await abort_with(context, error)
        return record


def _index_copy(stats: ReplicaStats) -> pb.IndexCopy:
    return pb.IndexCopy(
        domains=stats.num_domains,
        digests=stats.num_digests,
        followed_workers=stats.num_followed,
        known_workers=stats.num_known,
        resyncs=stats.num_resyncs,
        copy_lookups=stats.num_copy_lookups,
        script_lookups=stats.num_script_lookups,
        failed_lookups=stats.num_failed_lookups,
    )


def _traffic(name: str, traffic: TenantTraffic) -> pb.TenantTraffic:
    return pb.TenantTraffic(
        tenant=name,
        requests=traffic.num_requests,
        prompt_tokens=traffic.prompt_tokens,
        device_tokens=traffic.device_tokens,
        host_tokens=traffic.host_tokens,
        disk_tokens=traffic.disk_tokens,
        peer_tokens=traffic.peer_tokens,
    )


def _record(record: RequestRecord) -> pb.GetRequestRecordResponse:
    """All entries together."""
    message = pb.GetRequestRecordResponse(tenant=record.tenant_name, request_id=record.request_id)
    for entry in record.entries:
        match entry:
            case Arrived():
                message.model = entry.model
                message.receive_time.CopyFrom(timestamp(entry.receive_unix_s))
            case Routed():
                _add_route(message, entry)
            case FirstToken():
                message.cached_tokens = entry.cached.total
                message.cached_by_tier.CopyFrom(cached_by_tier(entry.cached))
            case Ended():
                _add_end(message, entry)
    return message


def _add_route(message: pb.GetRequestRecordResponse, entry: Routed) -> None:
    message.prompt_tokens = entry.prompt_tokens
    message.attempts += 1
    message.degraded = entry.degraded
    message.route_duration.CopyFrom(duration(entry.route_s))
    message.route_rule = _RULES[entry.rule]
    del message.terms[:]
    message.terms.extend(_term(term) for term in entry.terms)


def _add_end(message: pb.GetRequestRecordResponse, entry: Ended) -> None:
    message.status = entry.status
    message.completion_tokens = entry.completion_tokens
    if entry.timings is not None:
        message.queue_duration.CopyFrom(duration(entry.timings.queue_s))
        message.prefill_duration.CopyFrom(duration(entry.timings.prefill_s))
        message.decode_duration.CopyFrom(duration(entry.timings.decode_s))
        message.preemptions = entry.timings.preemptions
        message.preempted_duration.CopyFrom(duration(entry.timings.preempted_s))
        message.recompute_duration.CopyFrom(duration(entry.timings.recompute_s))
        message.swap_duration.CopyFrom(duration(entry.timings.swap_s))
        message.recomputed_tokens = entry.timings.recomputed_tokens


def _term(term: RouteTerm) -> pb.RouteTerm:
    return pb.RouteTerm(
        worker_id=term.worker_id,
        matched_tokens=term.matched_tokens,
        queue_s=term.queue_s,
        prefill_s=term.prefill_s,
        cost=term.cost,
        recompute_s=term.recompute_s,
        counted_tokens=term.counted_tokens,
    )
