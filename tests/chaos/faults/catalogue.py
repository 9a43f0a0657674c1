"""All faults, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults import callers, machines, partitions, rays, real_model, routers, stores, workers
from tests.chaos.faults.course import Extent
from tests.chaos.outcome import Outcome

Run = Callable[[Path, Extent], Awaitable[Outcome]]

__all__ = ["FAULTS", "Extent", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    name: str
    what: str
    run: Run
    in_ci: bool = False
    """Whether its short course is among a change's tests."""


FAULTS = (
    Fault("kill-prefill", "kill -9 of a worker while it computes prompts", workers.kill_in_prefill),
    Fault("kill-decode", "kill -9 of a worker while it answers", workers.kill_in_decode, in_ci=True),
    Fault("stop-return", "SIGSTOP of a worker, and its return", workers.stop_and_return),
    Fault("zombie", "SIGSTOP of a worker, and its return after another took its place", workers.zombie),
    Fault("router", "kill -9 of a router under load, another one behind it", routers.kill_router, in_ci=True),
    Fault("store-stopped", "Valkey killed, back after 14 s", stores.course_of(stores.STOPPED)),
    Fault("store-empty", "Valkey killed, back without its data", stores.course_of(stores.EMPTIED)),
    Fault("store-old", "Valkey killed, back from an old dump", stores.course_of(stores.OLD_DUMP), in_ci=True),
    Fault("store-paused", "Valkey does not answer for 10 s", stores.course_of(stores.PAUSED)),
    Fault("store-users", "Valkey's users removed for 14 s", stores.course_of(stores.NO_USERS)),
    Fault("kill-smollm2", "kill -9 of workers with SmolLM2", real_model.kill_with_smollm2),
    Fault("slow-readers", "streams that nobody reads", callers.slow_readers),
    Fault("cancel-storm", "requests cancelled at random moments", callers.cancel_storm, in_ci=True),
    Fault("full-disk", "no room on the disk below the cache", machines.full_disk),
    Fault("clock-jump", "clocks of a router and of a worker set an hour wrong", machines.clock_jump),
    Fault("cut-router-worker", "no packets between routers and a worker", partitions.router_from_worker),
    Fault("cut-worker-store", "no packets between a worker and Valkey", partitions.worker_from_store),
    Fault("cut-router-store", "no packets between a router and Valkey", partitions.router_from_store),
    Fault("ray-gcs", "Ray's GCS killed for 70 s, and back", rays.gcs_killed),
)
