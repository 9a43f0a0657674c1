"""The engine's thread without a thread: the same turns, as a task whose steps take virtual time.

What a turn says to the event loop arrives when the time that it takes has passed. `watch` hears what goes in and out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from cache_store.clock import Clock
from tests.simulation.loop import VirtualLoop
from worker.engine import Engine
from worker.engine_thread import EngineThread
from worker.requests import EngineOutput, EngineRequest

SHORTEST_TURN_S = 0.0005
UNIX_START_S = 1_750_000_000.0


class EngineWatch(Protocol):
    """Sees what an engine is asked and what it answers."""

    def note_request(self, request: EngineRequest) -> None: ...

    def note_output(self, output: EngineOutput) -> None: ...


class ProcessClock:
    """The clock of one process. A unix clock may be wrong by `skew_s`; within a step time goes on."""

    def __init__(self, loop: VirtualLoop, skew_s: float = 0.0, watch: EngineWatch | None = None) -> None:
        self.skew_s = skew_s
        self.watch = watch
        self._loop = loop
        self._ahead_s = 0.0

    def monotonic_s(self) -> float:
        return self._loop.time() + self._ahead_s

    def unix_s(self) -> float:
        return UNIX_START_S + self._loop.time() + self._ahead_s + self.skew_s

    @property
    def has_spent(self) -> bool:
        """Whether a step has taken time that has not passed yet."""
        return self._ahead_s > 0

    def spend(self, seconds: float) -> None:
        """A step takes so long."""
        self._ahead_s += seconds

    def take_spent(self) -> float:
        """What steps have taken since the last call."""
        spent_s, self._ahead_s = self._ahead_s, 0.0
        return spent_s


class _Commands:
    """In place of the queue: putting wakes the task."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self.has_some = asyncio.Event()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self.has_some.set()

    def take_all(self) -> list[Any]:
        items = list(self._items)
        self._items.clear()
        self.has_some.clear()
        return items


class SimulatedEngineThread(EngineThread[Engine]):
    """In place of worker.engine_thread.EngineThread."""

    def __init__(self, engine: Engine, on_events: Any, clock: Clock) -> None:
        super().__init__(engine, on_events, clock)
        assert isinstance(clock, ProcessClock)
        self._process_clock = clock
        self._arrived = _Commands()
        self._commands: Any = self._arrived
        self._said: list[Callable[[], None]] = []
        self._driver: asyncio.Task[None] | None = None

    @property
    def engine(self) -> Engine:
        """To be looked at."""
        return self._engine

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._driver = asyncio.create_task(self._drive(), name="engine")

    async def _drive(self) -> None:
        failure: BaseException | None = None
        try:
            while self._turn(await self._next_commands()):
                await asyncio.sleep(max(self._process_clock.take_spent(), SHORTEST_TURN_S))
                self._say()
        except Exception as error:
            failure = error
        self._say()
        self._end(failure)

    async def _next_commands(self) -> list[Any]:
        if not (self._engine.has_work or self._engine.has_idle_work or self._arrived.has_some.is_set()):
            try:
                async with asyncio.timeout(self._idle_check_after_s):
                    await self._arrived.has_some.wait()
            except TimeoutError:
                if not self._is_checked:
                    self._engine.check_invariants()
                    self._is_checked = True
            else:
                self._is_checked = False
        return self._arrived.take_all()

    def _say(self) -> None:
        said, self._said = self._said, []
        for each in said:
            each()

    def _post(self, function: Callable[[], None]) -> None:
        if self._process_clock.has_spent or self._said:
            self._said.append(function)
        else:
            asyncio.get_running_loop().call_soon(function)

    def _obey(self, command: Any, report: Any) -> None:
        watch = self._process_clock.watch
        if watch is not None and hasattr(command, "request"):
            watch.note_request(command.request)
        super()._obey(command, report)

    def _send(self, report: Any) -> None:
        watch = self._process_clock.watch
        for output in report.outputs if watch is not None else ():
            watch.note_output(output)
        super()._send(report)
