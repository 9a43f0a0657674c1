"""An engine whose every step is told by the test: for tests of what stands around an engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from cache_store.errors import InvalidRequestError
from cache_store.events import BlockEvent
from cache_store.registry import WorkerLoad
from cache_store.scrubs import Dropped
from cache_store.usage import TenantUse
from worker.fences import Fences
from worker.requests import EngineOutput, EngineRequest, RequestKey

LOAD = WorkerLoad(0, 0, 0, 0.0, 0)


class ScriptedEngine:
    """Runs one scripted step after the other; `refuse` holds the keys that `submit` refuses."""

    def __init__(self) -> None:
        self.script: deque[Callable[[], Sequence[EngineOutput]]] = deque()
        self.submitted: list[EngineRequest] = []
        self.cancelled: list[RequestKey] = []
        self.refuse: set[RequestKey] = set()
        self.events: list[BlockEvent] = []
        self.num_checks = 0
        self.num_ticks = 0
        self.due: list[BlockEvent] = []
        """Events of the next tick."""
        self.uses: list[TenantUse] = []
        self.num_uses_asked = 0
        self.num_idle_steps = 0
        """That can wait until there is nothing else to do."""
        self.purges: list[Fences] = []
        self.threads: set[int] = set()

    @property
    def has_work(self) -> bool:
        return bool(self.submitted) and bool(self.script)

    @property
    def has_idle_work(self) -> bool:
        return self.num_idle_steps > 0

    def step_idle(self) -> None:
        self.num_idle_steps -= 1

    def submit(self, request: EngineRequest) -> None:
        self.threads.add(threading.get_ident())
        if request.key in self.refuse:
            raise InvalidRequestError("prompt", "refused by the script")
        self.submitted.append(request)

    def cancel(self, key: RequestKey) -> None:
        self.cancelled.append(key)

    def step(self) -> Sequence[EngineOutput]:
        self.threads.add(threading.get_ident())
        return self.script.popleft()()

    def tick(self) -> None:
        self.num_ticks += 1
        self.events += self.due
        self.due = []

    def purge(self, fences: Fences) -> Dropped:
        self.purges.append(fences)
        return Dropped(device_blocks=3, host_blocks=2, disk_blocks=1, held_blocks=1)

    def load(self) -> WorkerLoad:
        return LOAD

    def usage(self) -> Sequence[TenantUse]:
        self.num_uses_asked += 1
        return self.uses

    def drain_events(self) -> Sequence[BlockEvent]:
        events, self.events = self.events, []
        return events

    def check_invariants(self) -> None:
        self.num_checks += 1
