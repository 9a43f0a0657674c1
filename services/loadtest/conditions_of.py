"""Gathers a run's conditions. Pure but for what it asks of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from services.client.admin_results import ClusterStatus, WorkerStatus
from services.loadtest import surroundings
from services.loadtest.arrivals import OpenLoop
from services.loadtest.backends import Backend, ServedModel
from services.loadtest.conditions import (
    CONDITIONS_VERSION,
    CacheState,
    Conditions,
    MachineLoad,
    ModelConditions,
    TenantConditions,
    WorkerConditions,
)
from services.loadtest.run_plan import RunPlan, TenantPlan, concurrency_of


@dataclass(frozen=True, slots=True)
class Found:
    """What a run found out beside its plan."""

    model: ServedModel
    status: ClusterStatus | None
    cache_state: CacheState
    start_unix_s: float
    load_before: MachineLoad
    load_after: MachineLoad


def conditions_of(plan: RunPlan, backend: Backend, found: Found) -> Conditions:
    """All conditions of a run."""
    status, model = found.status, found.model
    has_rate = any(isinstance(each.arrival, OpenLoop) for each in plan.tenants)
    return Conditions(
        conditions_version=CONDITIONS_VERSION,
        versions=surroundings.versions() | ({"server": status.version} if status else {}),
        commit=surroundings.commit(),
        machine=surroundings.machine(),
        model=ModelConditions(
            name=model.name,
            digest=_digest(status, model.name),
            block_size=model.block_size,
            max_model_len=model.max_model_len,
            kv_bytes_per_token=model.kv_bytes_per_token,
            vocab_size=model.vocab_size,
            tokenizer=backend.tokenizer,
        ),
        workers=tuple(map(_worker, status.workers)) if status else (),
        backend=backend.name,
        arrival=plan.arrival_name,
        request_rate=_finite(plan.request_rate) if has_rate else None,
        burstiness=_finite(plan.burstiness) if has_rate else None,
        max_concurrency=plan.max_concurrency,
        tenants=tuple(map(_tenant, plan.tenants)),
        seed=plan.seed,
        cache_state=found.cache_state,
        partition=plan.partition,
        settings=plan.settings,
        start_unix_s=found.start_unix_s,
        load_before=found.load_before,
        load_after=found.load_after,
        is_remote=backend.is_remote,
        stated=plan.stated,
    )


def _digest(status: ClusterStatus | None, model: str) -> str:
    workers = status.workers if status else ()
    return ",".join(sorted({each.kv_format for each in workers if each.model == model and each.kv_format}))


def _worker(worker: WorkerStatus) -> WorkerConditions:
    return WorkerConditions(
        worker=worker.worker_id,
        model=worker.model,
        total_blocks=worker.total_blocks,
        block_size=worker.block_size,
        kv_pool_bytes=worker.kv_pool_bytes,
        max_num_sequences=worker.max_num_sequences,
        host_blocks=_tier_blocks(worker, "host"),
        disk_blocks=_tier_blocks(worker, "disk"),
    )


def _tier_blocks(worker: WorkerStatus, name: str) -> int:
    return sum(tier.total_blocks for tier in worker.tiers if tier.tier == name)


def _tenant(each: TenantPlan) -> TenantConditions:
    rate = each.arrival.request_rate if isinstance(each.arrival, OpenLoop) else None
    return TenantConditions(
        tenant=each.tenant,
        weight=each.weight,
        workload=each.spec.kind,
        parameters=each.spec.parameters(),
        request_rate=None if rate is None else _finite(rate),
        max_concurrency=concurrency_of(each.arrival),
        quota=each.quota,
    )


def _finite(rate: float) -> float | None:
    """None for infinity, which JSON does not have."""
    return rate if rate < float("inf") else None
