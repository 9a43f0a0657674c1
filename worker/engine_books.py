"""What an engine counts, for whoever asks how it does. Pure; keeps nothing."""

from __future__ import annotations

from dataclasses import replace

from cache_store.block_pool import BlockPool
from cache_store.registry import WorkerLoad
from cache_store.usage import Pressure
from worker.rate import RateMeter
from worker.scheduler import Scheduler

MIN_RETRY_S, MAX_RETRY_S = 0.5, 30.0


def load_of(
    pool: BlockPool, scheduler: Scheduler, rate: RateMeter, num_yielded_pins: int, num_refused: int
) -> WorkerLoad:
    """What there is to do and what has come of the pool, without requests' numbers."""
    return WorkerLoad(
        running_requests=0,
        waiting_requests=0,
        queued_prefill_tokens=queued_tokens(scheduler),
        prefill_tokens_per_s=rate.tokens_per_s,
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
