"""One thread owns the engine and all its state; everybody else talks to it through this class.

Towards the engine: one queue of commands. Back: one call into the event loop per step, which hands outputs to the
outboxes of their requests, events to the index's publisher, and the load to whoever asks. The thread sleeps on the
queue while the engine has nothing to do. When the engine raises, the thread ends: every open request fails with
WorkerLostError, `healthy` turns False and `ended` is set; nobody revives it, the worker starts again.

All methods but the private ones of the thread are called on the event loop. Knows no gRPC, Redis or Ray.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from cache_store.clock import Clock
from cache_store.errors import StemcacheError, WorkerLostError
from cache_store.events import BlockEvent
from cache_store.registry import WorkerLoad
from worker.outbox import Outbox
from worker.requests import EngineOutput, EngineRequest, Failed, RequestKey
from worker.threaded_engine import StepWatch, ThreadedEngine

IDLE_CHECK_AFTER_S = 0.5
"""Idle for that long, the engine's invariants are checked once: never in the way of a request."""

TICK_S = 0.5
"""How often an engine is told that time passes, busy or not."""

_log = structlog.get_logger(__name__)


EngineT_co = TypeVar("EngineT_co", bound=ThreadedEngine, covariant=True)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class _Submit:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class _Cancel:
    key: RequestKey


@dataclass(frozen=True, slots=True)
class _Call:
    """Runs `run` on the thread; it settles a future of the loop by itself."""

    run: Callable[[], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class _Wake:
    """Something came from a lower tier."""


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Submit | _Cancel | _Call | _Wake | _Stop


@dataclass(slots=True)
class _Report:
    """What the thread tells the loop in one call."""

    outputs: list[EngineOutput] = field(default_factory=list)
    settlements: list[Callable[[], None]] = field(default_factory=list)
    events: tuple[BlockEvent, ...] = ()
    load: WorkerLoad | None = None


class EngineThread(Generic[EngineT_co]):
    """Runs an engine on a thread of its own and brings its outputs to the event loop that it was started on."""

    def __init__(
        self,
        engine: EngineT_co,
        on_events: Callable[[Sequence[BlockEvent]], None],
        clock: Clock,
        idle_check_after_s: float = IDLE_CHECK_AFTER_S,
    ) -> None:
        self._engine = engine
        self._on_events = on_events
        self._clock = clock
        self._idle_check_after_s = idle_check_after_s
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._outboxes: dict[RequestKey, Outbox] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        self._usage = tuple(engine.usage())
        self._load = replace(engine.load(), tenants=self._usage)
        self._is_checked = False
        self._next_tick_s = clock.monotonic_s() + TICK_S
        self._last_report_s = clock.monotonic_s()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.step_watch: StepWatch | None = None
        """Told of steps; to be set before the start."""
        self._ended: asyncio.Event = asyncio.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the thread; outputs come to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether the thread runs."""
        return self._loop is not None and not self._ended.is_set()

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread; None while it runs and after an orderly stop."""
        return self._failure

    @property
    def num_open(self) -> int:
        """Requests that were submitted and not closed."""
        return len(self._outboxes)

    @property
    def load(self) -> WorkerLoad:
        """As of the last step; the tenants' part as of the last tick, where the engine is busy."""
        return self._load

    def stalled_s(self) -> float:
        """For how long a step has been running; 0 where every request has ended, read or not."""
        if all(outbox.ended for outbox in self._outboxes.values()):
            return 0.0
        return self._clock.monotonic_s() - self._last_report_s

    async def wait_ended(self) -> None:
        """Returns when the thread has ended, whatever the reason."""
        await self._ended.wait()

    def submit(self, request: EngineRequest) -> Outbox:
        """Hands a request to the engine. Raises WorkerLostError where the thread does not run."""
        if not self.healthy:
            raise WorkerLostError("this worker's engine has stopped; the worker is starting again")
        assert request.key not in self._outboxes, "a request key is used once"
        if self.stalled_s() == 0.0:
            self._last_report_s = self._clock.monotonic_s()
        outbox = self._outboxes[request.key] = Outbox()
        self._commands.put(_Submit(request))
        return outbox

    def wake(self) -> None:
        """Something came from a lower tier. May be called on any thread."""
        self._commands.put(_Wake())

    def close(self, key: RequestKey) -> None:
        """Forgets a request; where it has not ended, the engine cancels it. Every submit is followed by one close."""
        outbox = self._outboxes.pop(key, None)
        if outbox is not None and not outbox.ended:
            self._commands.put(_Cancel(key))

    async def call(self, function: Callable[[EngineT_co], ResultT], timeout_s: float) -> ResultT:
        """Runs `function` between two steps. Raises what it raises, TimeoutError, and WorkerLostError as `submit`."""
        if not self.healthy:
            raise WorkerLostError("this worker's engine has stopped; the worker is starting again")
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)

        def run() -> Callable[[], None]:
            try:
                result = function(self._engine)
            except Exception as error:  # handed to the caller, who asked for this function
                return partial(_settle, future, _Raised(error))
            return partial(_settle, future, result)

        self._commands.put(_Call(run))
        async with asyncio.timeout(timeout_s):
            return await future

    async def stop(self, timeout_s: float) -> None:
        """Ends the thread after its current step; open requests fail. Raises TimeoutError where a step hangs."""
        if self._loop is None:
            return
        self._commands.put(_Stop())
        async with asyncio.timeout(timeout_s):
            await self._ended.wait()

    def abandon(self, failure: BaseException) -> None:
        """Fails every open request without waiting for a thread that may hang."""
        self._end(failure)

    # On the event loop, called from the thread.

    def _note_alive(self) -> None:
        """No step is running: requests wait for what lower tiers bring."""
        self._last_report_s = self._clock.monotonic_s()

    def _deliver(self, report: _Report) -> None:
        if self._ended.is_set():  # abandoned
            return
        self._last_report_s = self._clock.monotonic_s()
        if report.load is not None:
            self._load = report.load
        for output in report.outputs:
            outbox = self._outboxes.get(output.key)  # None: closed while its output was on the way
            if outbox is not None:
                outbox.put(output)
        if report.events:
            try:
                self._on_events(report.events)
            except Exception as error:  # what follows could not be trusted
                self._end(error)
                return
        for settle in report.settlements:
            settle()

    def _end(self, failure: BaseException | None) -> None:
        if self._ended.is_set():
            return
        self._failure = failure
        self._ended.set()
        error = WorkerLostError("this worker is stopping")  # to its callers it is as if it were gone
        if failure is not None:
            error = WorkerLostError("this worker's engine failed; the worker is starting again")
            _log.error("engine_failed", error=type(failure).__name__, exc_info=failure)
        for outbox in self._outboxes.values():
            outbox.fail(error)
        for future in tuple(self._calls):
            _settle(future, _Raised(error))

    # On the thread.

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._turn(self._take()):
                pass
        except BaseException as error:  # the thread's last act is to say why it ends
            failure = error
        self._post(partial(self._end, failure))

    def _turn(self, commands: Sequence[_Command]) -> bool:
        """Obeys, computes one step and reports; False after a stop."""
        report = _Report()
        for command in commands:
            if isinstance(command, _Stop):
                report.events = tuple(self._engine.drain_events())
                self._send(report)
                return False
            self._obey(command, report)
        if report.settlements:  # their callers wait for what was done, not for the next step
            report.events = tuple(self._engine.drain_events())
            self._send(report)
            report = _Report()
        is_idle = not (commands or self._engine.has_work or self._engine.has_idle_work)
        if self._engine.has_work:
            report.outputs.extend(self._step())
        elif self._engine.has_idle_work:
            self._engine.step_idle()
        is_news = (self._tick() or not self._engine.has_work) and self._take_usage()
        report.events = tuple(self._engine.drain_events())
        if not is_idle or is_news or report.events:
            self._send(report)
        else:
            self._post(self._note_alive)
        return True

    def _step(self) -> Sequence[EngineOutput]:
        if self.step_watch is None:
            return self._engine.step()
        began_s = self._clock.monotonic_s()
        outputs = self._engine.step()
        self.step_watch.stepped(began_s, self._clock.monotonic_s(), outputs)
        return outputs

    def _take(self) -> list[_Command]:
        """All commands that wait; where the engine has nothing to do, sleeps for a while unless there is one."""
        commands: list[_Command] = []
        is_idle = not (self._engine.has_work or self._engine.has_idle_work)
        if is_idle and (first := self._sleep()) is not None:
            commands.append(first)
        while not self._commands.empty():  # this thread is the only consumer
            commands.append(self._commands.get())
        return commands

    def _sleep(self) -> _Command | None:
        try:
            command = self._commands.get(timeout=self._idle_check_after_s)
        except queue.Empty:
            if not self._is_checked:
                self._engine.check_invariants()
                self._is_checked = True
            return None
        self._is_checked = False
        return command

    def _tick(self) -> bool:
        """Whether it was time for one."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_tick_s:
            return False
        self._next_tick_s = now_s + TICK_S
        self._engine.tick()
        return True

    def _take_usage(self) -> bool:
        """Whether it is another one than before."""
        before, self._usage = self._usage, tuple(self._engine.usage())
        return self._usage != before

    def _obey(self, command: _Submit | _Cancel | _Call | _Wake, report: _Report) -> None:
        if isinstance(command, _Submit):
            try:
                self._engine.submit(command.request)
            except StemcacheError as error:
                report.outputs.append(Failed(command.request.key, error))
        elif isinstance(command, _Cancel):
            self._engine.cancel(command.key)
        elif isinstance(command, _Wake):
            self._engine.poll()
        else:
            report.settlements.append(command.run())

    def _send(self, report: _Report) -> None:
        report.load = replace(self._engine.load(), tenants=self._usage)
        self._post(partial(self._deliver, report))

    def _post(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Exception


def _settle(future: asyncio.Future[ResultT], result: ResultT | _Raised) -> None:
    if future.done():  # its caller went away
        return
    if isinstance(result, _Raised):
        future.set_exception(result.error)
    else:
        future.set_result(result)
