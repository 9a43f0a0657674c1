"""A worker as a supervised part: placed by whoever runs actors, restarted there after a crash.

A crash is the placement's to mend: Ray starts the process again within seconds. Only a worker that does not come back,
or that Ray gave up, counts as failed here, and is then placed anew by the supervisor. One that was drained has left and
stays away. Knows no Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from cache_store.clock import Clock
from cache_store.registry import WorkerRecord
from services.cluster.parts import Condition, Health

COMEBACK_S = 120.0
"""A worker that was ready and does not answer for that long has failed."""

DRAIN_S = 10.0
"""What running requests get at an orderly stop."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker to place."""

    worker_id: str
    arguments: tuple[object, ...]
    """Of the actor's constructor."""
    environment: Mapping[str, str]
    """Set in the actor's process before it starts."""
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float] = field(default_factory=dict)
    """Others that Ray counts, by name."""
    fingerprint: str = ""
    """Of the arguments; a worker that runs already under the same one is taken over. Empty: it is started anew."""


class PlacedState(StrEnum):
    """Where a placed worker stands."""

    STARTING = "starting"
    """Being started, for the first time or again."""
    READY = "ready"
    DEAD = "dead"
    """Given up; it does not come back by itself."""
    LEFT = "left"
    """Ended by itself, as it was told to."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A placed worker, when it was last asked."""

    state: PlacedState
    record: WorkerRecord | None
    """Of a READY worker."""
    reason: str
    """Why it is DEAD or starts again; empty otherwise."""


class WorkerPlacement(Protocol):
    """Runs workers somewhere. Called from one thread; calls are short, except `stop`."""

    def create(self, spec: WorkerSpec) -> None:
        """Begins a start; replaces a worker of the same id. Raises UnavailableError."""
        ...

    def look(self, worker_id: str) -> Placed:
        """How a created worker is."""
        ...

    def stop(self, worker_id: str, drain_s: float) -> None:
        """Ends a worker and waits for it: running requests get `drain_s`. Idempotent."""
        ...


class WorkerPart:
    """Implements `services.cluster.parts.Part`."""

    def __init__(self, spec: WorkerSpec, placement: WorkerPlacement, clock: Clock) -> None:
        self._spec = spec
        self._placement = placement
        self._clock = clock
        self._record: WorkerRecord | None = None
        self._ready_s: float | None = None

    @property
    def name(self) -> str:
        return self._spec.worker_id

    @property
    def record(self) -> WorkerRecord | None:
        """What it last told about itself; None before it was ready for the first time."""
        return self._record

    def start(self) -> None:
        self._ready_s = None
        self._placement.create(self._spec)

    def condition(self) -> Condition:
        placed = self._placement.look(self._spec.worker_id)
        now_s = self._clock.monotonic_s()
        match placed.state:
            case PlacedState.READY:
                self._record, self._ready_s = placed.record, now_s
                return Condition(Health.READY)
            case PlacedState.DEAD:
                return Condition(Health.FAILED, placed.reason)
            case PlacedState.LEFT:
                return Condition(Health.LEFT, "drained")
            case PlacedState.STARTING if self._ready_s is None:
                return Condition(Health.STARTING)
            case PlacedState.STARTING if now_s - self._ready_s < COMEBACK_S:
                return Condition(Health.READY, "starting again")
        return Condition(Health.FAILED, f"did not come back within {COMEBACK_S:.0f} s: {placed.reason}")

    def stop(self) -> None:
        self._placement.stop(self._spec.worker_id, DRAIN_S)
