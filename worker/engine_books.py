"""What an engine counts, for whoever asks how it does. Pure; keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cache_store.block_pool import BlockPool
from cache_store.registry import WorkerLoad
from cache_store.tier_kind import TierKind
from cache_store.usage import Pressure, TenantUse
from worker.rate import RateMeter
from worker.scheduler import Scheduler

MIN_RETRY_S, MAX_RETRY_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What an engine's blocks are used for."""

    held_blocks: int
    """Of the device, by running requests and pins."""
    used_blocks: int
    """Of the device, held or cached."""
    total_blocks: int
    lent_blocks: Mapping[TierKind, int]
    """By tier: used by tenants beyond their guarantees, out of the guarantees of others."""
    active_sequences: int
    active_tokens: int
    """Whose keys and values running sequences read; those that several read count for each."""


def vitals_of(pool: BlockPool, scheduler: Scheduler) -> Vitals:
    """As of now. Walks over tenants and running sequences."""
    running, uses = scheduler.running, pool.usage()
    loads = () if pool.lower is None else pool.lower.loads()
    sizes = {TierKind.DEVICE: pool.num_blocks, **{load.tier: load.num_blocks for load in loads}}
    return Vitals(
        held_blocks=pool.num_held,
        used_blocks=pool.num_used,
        total_blocks=pool.num_blocks,
        lent_blocks={tier: _lent(pool, uses, tier, size) for tier, size in sizes.items()},
        active_sequences=len(running),
        active_tokens=sum(sequence.num_computed for sequence in running),
    )


def _lent(pool: BlockPool, uses: tuple[TenantUse, ...], tier: TierKind, num_blocks: int) -> int:
    num_borrowed = num_spare = 0
    for use in uses:
        share = pool.quotas.of(use.tenant).share(tier)
        num_used = {TierKind.DEVICE: use.used_blocks, TierKind.HOST: use.host_blocks}.get(tier, use.disk_blocks)
        num_beyond = num_used - share.guaranteed_blocks(num_blocks)
        num_borrowed += max(0, num_beyond)
        num_spare += 0 if share.is_strict else max(0, -num_beyond)
    return min(num_borrowed, num_spare)


def load_of(
    pool: BlockPool, scheduler: Scheduler, rate: RateMeter, num_yielded_pins: int, num_refused: int
) -> WorkerLoad:
    """What there is to do and what has come of the pool, without requests' numbers."""
    return WorkerLoad(
        running_requests=0,
        waiting_requests=0,
        queued_prefill_tokens=queued_tokens(scheduler),
        prefill_tokens_per_s=rate.tokens_per_s,
        recent_prefill_tokens=rate.recent_tokens,
        used_blocks=pool.num_used,
        tiers=() if pool.lower is None else pool.lower.loads(),
        windows=pool.windows.loads(),
        pressure=pressure_of(pool, scheduler, num_yielded_pins, num_refused),
    )


def queue_s(load: WorkerLoad) -> float:
    """After how long whoever finds too many waiting should come again."""
    if load.prefill_tokens_per_s == 0:
        return MIN_RETRY_S
    return min(MAX_RETRY_S, max(MIN_RETRY_S, load.queued_prefill_tokens / load.prefill_tokens_per_s))


def queued_tokens(scheduler: Scheduler) -> int:
    """Prompt tokens admitted or waiting, still to be computed, as far as one can tell now."""
    waiting = sum(sequence.num_remaining - sequence.num_expected for sequence in scheduler.waiting)
    return waiting + sum(sequence.num_remaining for sequence in scheduler.running if sequence.is_prefilling)


def pressure_of(pool: BlockPool, scheduler: Scheduler, num_yielded_pins: int, num_refused: int) -> Pressure:
    """What running out of blocks has led to, in the pool and above it."""
    return replace(
        pool.pressure,
        stopped_admissions=scheduler.num_stopped_admissions,
        preemptions=scheduler.num_preemptions,
        yielded_pins=num_yielded_pins,
        refused_requests=num_refused,
    )
