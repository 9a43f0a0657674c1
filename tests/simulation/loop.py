"""An event loop in which time passes only when nothing else can happen, and processes that can be stopped and killed.

Everything that runs belongs to a process, by a context variable that its tasks and timers inherit; what belongs to none
is the network's and the test's. A stopped process runs nothing until it goes on, and then all that has become due
meanwhile, in order, as after SIGSTOP and SIGCONT. A killed one never runs again, not even its `finally`.
Threads do not exist: what is handed to one runs on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from enum import StrEnum
from typing import Any

START_S = 1_000.0
STEP_LIMIT = 2_000_000
"""Callbacks of one run: a loop that never ends is an error, not a hang."""


class StandstillError(Exception):
    """Nothing is left that could happen, or things happen without end."""


class Phase(StrEnum):
    """Of a process."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Process:
    """One process of the simulated cluster."""

    def __init__(self, loop: VirtualLoop, place: str, name: str) -> None:
        """`place`: the machine or container, which a process that follows it shares."""
        self.loop = loop
        self.place = place
        self.name = name
        self.phase = Phase.RUNNING
        self.held: list[asyncio.Handle] = []
        self._context = copy_context()
        self._context.run(_OWNER.set, self)

    @property
    def context(self) -> Context:
        """For what is to run in it."""
        return self._context.copy()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs `work` in it."""
        return asyncio.Task(work, loop=self.loop, name=name, context=self.context)

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in it."""
        self.loop.call_soon(function, *arguments, context=self.context)

    def stop(self) -> None:
        """As SIGSTOP."""
        if self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPED

    def go_on(self) -> None:
        """As SIGCONT."""
        if self.phase is Phase.STOPPED:
            self.phase = Phase.RUNNING
            self.loop.put_back(self.held)
            self.held = []

    def kill(self) -> None:
        """As SIGKILL."""
        self.phase = Phase.DEAD


_OWNER: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Whose code runs now; None: the network's or the test's."""
    return _OWNER.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """One run. Deterministic: the order of what is due follows from the order in which it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = START_S
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """By time, and of one time in the order in which they were asked for."""
        self._num_timers = 0
        self._graves: list[asyncio.Handle] = []
        """What dead processes would have run: kept, so that nothing of them is cleaned away meanwhile."""
        self._is_finished = False
        self.num_steps = 0
        self.crashes: list[dict[str, Any]] = []
        """What asyncio has to complain of."""
        self.set_exception_handler(lambda _, context: self.crashes.append(context))

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now_s

    def jump(self, seconds: float) -> None:
        """Lets time pass without anything happening."""
        self._now_s += seconds

    def outside(self, delay_s: float, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function of the network's later."""
        self.call_at(self._now_s + delay_s, function, *arguments, context=Context())

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        """These are due."""
        self._ready.extend(handles)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """There are no threads: it runs soon, whether its caller still waits or not."""
        del executor
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_soon(run)
        return future

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """As any loop; after the end nothing is called any more."""
        if self._is_finished:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """As `call_soon`; of timers that are due together, the one that was asked for first comes first."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_finished:
            self._num_timers += 1
            heapq.heappush(self._timers, (when, self._num_timers, timer))
        return timer

    def finish(self) -> None:
        """Ends all that is left without running it."""
        self._is_finished = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            with contextlib.suppress(BaseException):
                coroutine.close()  # type: ignore[union-attr]
        self._ready.clear()
        self._timers.clear()
        self._graves.clear()
        self.close()

    def _process_events(self, event_list: object) -> None:
        """There is nothing but timers."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _timer_handle_cancelled(self, handle: object) -> None:
        """It is left out when its time comes."""

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        if not ready:
            self._advance()
        end_s = self._now_s + 1e-9
        while timers and timers[0][0] < end_s:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:  # type: ignore[attr-defined]
                ready.append(handle)
        for _ in range(len(ready)):
            self._run_handle(ready.popleft())

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(timers)
        if not timers:
            raise StandstillError("nothing is left that could happen")
        self._now_s = max(self._now_s, timers[0][0])

    def _run_handle(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:  # type: ignore[attr-defined]
            return
        owner = handle._context.get(_OWNER)  # type: ignore[attr-defined]
        if owner is None or owner.phase is Phase.RUNNING:
            self.num_steps += 1
            if self.num_steps > STEP_LIMIT:
                raise StandstillError("things happen without end")
            handle._run()  # type: ignore[attr-defined]
        elif owner.phase is Phase.STOPPED:
            owner.held.append(handle)
        else:
            self._graves.append(handle)
