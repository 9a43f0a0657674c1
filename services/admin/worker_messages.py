"""A worker's record as the operator's message. Holds no state."""

from __future__ import annotations

from collections.abc import Callable

from stemcache.admin.v1 import admin_pb2 as pb

from cache_store.domain import TenantId
from cache_store.registry import WorkerRecord
from cache_store.usage import PeerCounts, Pressure, TenantUse, TierLoad, WindowLoad


def worker_message(record: WorkerRecord, tenant_name: Callable[[TenantId], str]) -> pb.Worker:
    """How a worker is, and who uses its blocks, by the names that `tenant_name` gives."""
    load = record.load
    return pb.Worker(
        worker_id=record.worker_id,
        incarnation=record.incarnation,
        address=record.address,
        model=record.model,
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        used_blocks=load.used_blocks,
        total_blocks=record.num_blocks,
        block_size=record.block_size,
        kv_bytes_per_token=record.kv_bytes_per_token,
        max_model_len=record.max_model_len,
        max_num_sequences=record.max_num_sequences,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        pressure=_pressure(load.pressure),
        tenants=[_use(use, tenant_name(use.tenant)) for use in load.tenants],
        quota_generation=record.quota_generation,
        tiers=[_tier(tier) for tier in load.tiers],
        audit=pb.Audit(
            checked_blocks=load.audit.checked_blocks,
            mismatches=load.audit.mismatches,
            skipped_hits=load.audit.skipped_hits,
        ),
        kv_bytes_per_sequence=record.kv_bytes_per_sequence,
        kv_pool_bytes=record.kv_pool_bytes,
        windows=[_window(window) for window in load.windows],
        peers=_peers(load.peers),
        draining=record.draining,
        kv_format=record.kv_format.hex(),
        metrics_address=record.metrics_address,
    )


def _window(load: WindowLoad) -> pb.WindowLoad:
    return pb.WindowLoad(
        window=load.window,
        used_slots=load.used_slots,
        total_slots=load.total_slots,
        cached_slots=load.cached_slots,
        max_cached_slots=load.max_cached_slots,
    )


def _peers(counts: PeerCounts) -> pb.PeerTraffic:
    return pb.PeerTraffic(
        fetched_blocks=counts.fetched_blocks,
        fetched_bytes=counts.fetched_bytes,
        served_blocks=counts.served_blocks,
        served_bytes=counts.served_bytes,
        fetches=counts.fetches,
        failed_fetches=counts.failed_fetches,
        refused_blocks=counts.refused_blocks,
        declined_fetches=counts.declined_fetches,
    )


def _pressure(pressure: Pressure) -> pb.Pressure:
    return pb.Pressure(
        lent_back_blocks=pressure.lent_back_blocks,
        evicted_blocks=pressure.evicted_blocks,
        stopped_admissions=pressure.stopped_admissions,
        preemptions=pressure.preemptions,
        yielded_pins=pressure.yielded_pins,
        refused_requests=pressure.refused_requests,
        demoted_blocks=pressure.demoted_blocks,
    )


def _tier(load: TierLoad) -> pb.TierLoad:
    return pb.TierLoad(
        tier=load.tier.value,
        used_blocks=load.used_blocks,
        total_blocks=load.num_blocks,
        stored_blocks=load.stored_blocks,
        loaded_blocks=load.loaded_blocks,
        evicted_blocks=load.evicted_blocks,
        dropped_blocks=load.dropped_blocks,
        failed_blocks=load.failed_blocks,
        load_block_s=load.load_block_s,
    )


def _use(use: TenantUse, name: str) -> pb.TenantUse:
    return pb.TenantUse(
        tenant=name,
        guaranteed_blocks=use.guaranteed_blocks,
        max_blocks=use.max_blocks,
        used_blocks=use.used_blocks,
        held_blocks=use.held_blocks,
        pinned_blocks=use.pinned_blocks,
        lent_blocks=use.lent_blocks,
        waiting_requests=use.waiting_requests,
        evicted_blocks=use.evicted_blocks,
        host_blocks=use.host_blocks,
        disk_blocks=use.disk_blocks,
    )
