"""What an engine counts, for whoever asks how it does. Pure; keeps nothing."""

from __future__ import annotations

from dataclasses import replace

from cache_store.block_pool import BlockPool
from cache_store.usage import Pressure
from worker.scheduler import Scheduler


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
