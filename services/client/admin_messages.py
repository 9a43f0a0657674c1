"""Between protobuf messages of the operator's API and the client's values."""

from __future__ import annotations

from dataclasses import fields

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.admin.v1 import admin_pb2 as pb

from services.client.admin_requests import TenantTerms
from services.client.admin_results import (
    ApiKey,
    AuditStatus,
    ClusterStatus,
    Explanation,
    IndexCopyStatus,
    PeerStatus,
    PressureStatus,
    PurgeReceipt,
    RequestRecord,
    RouteTerm,
    Tenant,
    TenantLimits,
    TenantQuota,
    TenantUse,
    TierShare,
    TierStatus,
    TrafficStatus,
    WindowStatus,
    WorkerPurge,
    WorkerStatus,
)
from services.client.cache_messages import blocks_of

_RULES = {
    pb.ROUTE_RULE_COST: "cost",
    pb.ROUTE_RULE_AFFINITY: "affinity",
    pb.ROUTE_RULE_TIE: "tie",
    pb.ROUTE_RULE_REPLICATION: "replication",
}


def tenant_of(message: pb.Tenant) -> Tenant:
    """The value of a tenant."""
    return Tenant(
        name=message.name,
        uuid=message.uuid,
        create_unix_s=seconds_of(message.create_time),
        epoch_unix_s=seconds_of(message.epoch_time),
        num_live_keys=message.live_keys,
        quota=TenantQuota(
            tiers=tuple(TierShare(each.tier, each.min, each.max, each.min_in_force) for each in message.quota.tiers),
            weight=message.quota.weight,
            max_pinned=message.quota.max_pinned,
            audit_share=message.quota.audit_share,
        ),
        limits=TenantLimits(message.limits.requests_in_flight or None, message.limits.tokens_per_s or None),
    )


def fill_terms(message: pb.CreateTenantRequest | pb.SetTenantQuotaRequest, terms: TenantTerms) -> None:
    """Writes what of quota and limits is to be set; what is None stays absent."""
    if terms.min is not None or terms.max is not None:
        message.tiers.append(pb.TierShare(tier=terms.tier, min=terms.min, max=terms.max))
    if terms.weight is not None:
        message.weight = terms.weight
    if terms.max_pinned is not None:
        message.max_pinned = terms.max_pinned
    if terms.audit_share is not None:
        message.audit_share = terms.audit_share
    if terms.requests_in_flight is not None:
        message.requests_in_flight = terms.requests_in_flight
    if terms.tokens_per_s is not None:
        message.tokens_per_s = terms.tokens_per_s


def api_key_of(message: pb.ApiKey) -> ApiKey:
    """The value of a key."""
    return ApiKey(message.key_id, seconds_of(message.create_time), message.revoked)


def receipt_of(message: pb.PurgeReceipt) -> PurgeReceipt:
    """The value of a receipt."""
    return PurgeReceipt(
        purge_unix_s=seconds_of(message.purge_time),
        control_generation=message.control_generation,
        workers=tuple(
            WorkerPurge(
                worker_id=each.worker_id,
                incarnation=each.incarnation,
                acknowledged=each.acknowledged,
                purged_blocks=blocks_of(each.purged_blocks),
                held_blocks=each.held_blocks,
                error=each.error,
                counts_pending=each.counts_pending,
            )
            for each in message.workers
        ),
        complete_unix_s=seconds_of(message.complete_time),
    )


def status_of(message: pb.GetStatusResponse) -> ClusterStatus:
    """The value of a status."""
    return ClusterStatus(
        version=message.version,
        degraded=message.degraded,
        control_age_s=seconds_of(message.control_age),
        control_generation=message.control_generation,
        workers=tuple(_worker_of(each) for each in message.workers),
        refused_workers=tuple(message.refused_workers),
        running_requests=message.running_requests,
        degraded_reasons=tuple(
            pb.DegradedReason.Name(each).removeprefix("DEGRADED_REASON_").lower() for each in message.degraded_reasons
        ),
        planned_requests=message.planned_requests,
        degraded_requests=message.degraded_requests,
        index_copy=IndexCopyStatus(*(getattr(message.index_copy, each.name) for each in fields(IndexCopyStatus))),
        console_url=message.console_url,
        traffic=tuple(
            TrafficStatus(*(getattr(each, field.name) for field in fields(TrafficStatus))) for each in message.traffic
        ),
        metrics_address=message.metrics_address,
    )


def explanation_of(message: pb.ExplainRequestResponse) -> Explanation:
    """The value of an explanation."""
    return Explanation(
        worker_id=message.worker_id,
        route=message.route,
        miss_reason=pb.MissReason.Name(message.miss_reason).removeprefix("MISS_REASON_").lower(),
        reuse=message.reuse,
        first_missing_token=message.first_missing_token,
        record=record_of(message.record),
    )


def record_of(message: pb.GetRequestRecordResponse) -> RequestRecord:
    """The value of a record."""
    return RequestRecord(
        tenant=message.tenant,
        request_id=message.request_id,
        model=message.model,
        receive_unix_s=seconds_of(message.receive_time),
        status=message.status,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        completion_tokens=message.completion_tokens,
        terms=tuple(
            RouteTerm(
                each.worker_id,
                each.matched_tokens,
                each.queue_s,
                each.prefill_s,
                each.cost,
                each.recompute_s,
                each.counted_tokens,
            )
            for each in message.terms
        ),
        route_rule=_RULES.get(message.route_rule, ""),
        attempts=message.attempts,
        degraded=message.degraded,
        route_s=seconds_of(message.route_duration),
        queue_s=seconds_of(message.queue_duration),
        prefill_s=seconds_of(message.prefill_duration),
        decode_s=seconds_of(message.decode_duration),
        preemptions=message.preemptions,
        preempted_s=seconds_of(message.preempted_duration),
        recompute_s=seconds_of(message.recompute_duration),
        swap_s=seconds_of(message.swap_duration),
        recomputed_tokens=message.recomputed_tokens,
    )


def seconds_of(message: Timestamp | Duration) -> float:
    """Seconds, since 1970 where it is a point in time."""
    return message.ToNanoseconds() / 1e9


def _worker_of(message: pb.Worker) -> WorkerStatus:
    return WorkerStatus(
        worker_id=message.worker_id,
        incarnation=message.incarnation,
        address=message.address,
        model=message.model,
        running_requests=message.running_requests,
        waiting_requests=message.waiting_requests,
        used_blocks=message.used_blocks,
        total_blocks=message.total_blocks,
        block_size=message.block_size,
        kv_bytes_per_token=message.kv_bytes_per_token,
        max_model_len=message.max_model_len,
        max_num_sequences=message.max_num_sequences,
        prefill_tokens_per_s=message.prefill_tokens_per_s,
        quota_generation=message.quota_generation,
        pressure=PressureStatus(*(getattr(message.pressure, each.name) for each in fields(PressureStatus))),
        tenants=tuple(TenantUse(*(getattr(use, each.name) for each in fields(TenantUse))) for use in message.tenants),
        tiers=tuple(TierStatus(*(getattr(tier, each.name) for each in fields(TierStatus))) for tier in message.tiers),
        audit=AuditStatus(*(getattr(message.audit, each.name) for each in fields(AuditStatus))),
        kv_bytes_per_sequence=message.kv_bytes_per_sequence,
        kv_pool_bytes=message.kv_pool_bytes,
        windows=tuple(
            WindowStatus(*(getattr(window, each.name) for each in fields(WindowStatus))) for window in message.windows
        ),
        peers=PeerStatus(*(getattr(message.peers, each.name) for each in fields(PeerStatus))),
        draining=message.draining,
        kv_format=message.kv_format,
        metrics_address=message.metrics_address,
    )
