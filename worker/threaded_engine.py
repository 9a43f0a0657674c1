"""What an engine's thread asks of an engine, and whom it tells of its steps. Protocols only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cache_store.events import BlockEvent
from cache_store.registry import WorkerLoad
from cache_store.usage import TenantUse
from worker.requests import EngineOutput, EngineRequest, RequestKey


class ThreadedEngine(Protocol):
    """What the thread asks of an engine."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def submit(self, request: EngineRequest) -> None:
        """Queues a request. A refused one raises a StemcacheError."""
        ...

    def cancel(self, key: RequestKey) -> None:
        """Ends a request without further outputs; unknown keys are ignored."""
        ...

    def step(self) -> Sequence[EngineOutput]:
        """Schedules, runs and commits one step."""
        ...

    @property
    def has_idle_work(self) -> bool:
        """Whether `step_idle` would do anything."""
        ...

    def step_idle(self) -> None:
        """A short step of what can wait until there is nothing else to do."""
        ...

    def tick(self) -> None:
        """Does what is due by time alone."""
        ...

    def poll(self) -> None:
        """Takes note of what came from lower tiers."""
        ...

    def load(self) -> WorkerLoad:
        """What it has to do, without the tenants' part in it; asked for after every step."""
        ...

    def usage(self) -> Sequence[TenantUse]:
        """Who has which blocks, those with most first; asked for with every tick, and when it gets idle."""
        ...

    def drain_events(self) -> Sequence[BlockEvent]:
        """Events since the last call."""
        ...

    def check_invariants(self) -> None:
        """Raises AssertionError where the state contradicts itself."""
        ...


class StepWatch(Protocol):
    """Watches steps; called on the engine's thread, between two of them."""

    def stepped(self, began_s: float, ended_s: float, outputs: Sequence[EngineOutput]) -> None:
        """A step has ended. By the monotonic clock."""
        ...
