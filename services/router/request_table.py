"""Running generations and finished ones that may still be asked for: makes request ids idempotent.

Every generation is a task of its own; callers come and go. A second call with the same id and the same body attaches
to the running generation or is given the kept result. When the last caller leaves, a generation whose id the client
chose waits a moment for a retry, any other ends at once. Every key begins with the tenant: another tenant's id is
simply absent. Owned by one event loop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.errors import (
    AlreadyExistsError,
    CancelledRequestError,
    StemcacheError,
    UnavailableError,
)
from cache_store.tokens import pack
from services.router.generation import Finished, FinishReason, GenerationLostError, Piece, Take
from services.router.limits import Concurrency
from services.router.progress import Progress
from services.router.results import KeptResults, ResultKey

GRACE_S = 1.0
"""How long a generation with a client-chosen id runs on without a caller."""

CLOSING_RETRY_AFTER_S = 1.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the table sees it."""

    tenant: TenantId
    request_id: str | None
    """None where the client chose none."""
    fingerprint: bytes
    """Names the body: the same id with another body is refused. Of no use where the client chose no id."""


Start = Callable[[str, Take], Awaitable[None]]
"""Runs the generation, under that request id, and gives its events."""


class _Cancel(StrEnum):
    """Why a generation was cancelled."""

    CLIENT = "client"
    ABANDONED = "abandoned"
    CLOSING = "closing"


class _Run:
    """A generation, its callers, and what ends it."""

    def __init__(self, key: ResultKey, fingerprint: bytes, grace_s: float) -> None:
        self.key = key
        self.task: asyncio.Task[None]
        self.fingerprint = fingerprint
        self.grace_s = grace_s
        self.progress = Progress()
        self.num_callers = 0
        self.cancelled = _Cancel.ABANDONED
        self.is_retired = False
        self.farewell: asyncio.TimerHandle | None = None

    def cancel(self, why: _Cancel) -> None:
        """Ends the task; the first reason stands."""
        if not self.task.cancelling():
            self.cancelled = why
        self.task.cancel()

    def stay(self) -> None:
        """Somebody is there again."""
        if self.farewell is not None:
            self.farewell.cancel()
            self.farewell = None


@dataclass(frozen=True, slots=True)
class Attached:
    """What a caller holds of a generation."""

    request_id: str
    progress: Progress


class RequestTable:
    """The generations of one router."""

    def __init__(self, clock: Clock, places: Concurrency, results: KeptResults, grace_s: float = GRACE_S) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._places = places
        self._results = results
        self._runs: dict[ResultKey, _Run] = {}
        self._abandoned: set[_Run] = set()
        """Being ended, since nobody waits for them: their ids are free already."""

    @property
    def num_running(self) -> int:
        """Generations that have not ended."""
        return len(self._runs) + len(self._abandoned)

    @contextmanager
    def attach(self, call: Call, start: Start) -> Iterator[Attached]:
        """The generation of `call`: kept, running, or started now. Leaving the block is leaving as a caller.

        Raises AlreadyExistsError where the id names another body, LimitExceededError and UnavailableError where no
        place is free for another generation.
        """
        key = ResultKey(call.tenant, call.request_id or uuid.uuid4().hex)
        kept = self._results.get(key)
        if kept is not None:
            _require_same(call.fingerprint, kept.fingerprint)
            yield Attached(key.request_id, kept.progress)
            return
        run = self._runs.get(key) or self._start(key, call, start)
        _require_same(call.fingerprint, run.fingerprint)
        run.num_callers += 1
        run.stay()
        try:
            yield Attached(key.request_id, run.progress)
        finally:
            self._leave(run)

    def cancel(self, tenant: TenantId, request_id: str) -> bool:
        """Ends a running generation for all its callers. False where the tenant has none of that id."""
        run = self._runs.get(ResultKey(tenant, request_id))
        if run is None:
            return False
        run.cancel(_Cancel.CLIENT)
        return True

    async def idle(self) -> None:
        """Returns when nothing runs."""
        while self.num_running:
            tasks = {run.task for run in (*self._runs.values(), *self._abandoned)}
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # the tasks' callbacks
            filed = {run.task for run in (*self._runs.values(), *self._abandoned)}
            assert not tasks & filed, "a run has ended and is still filed"

    async def close(self) -> None:
        """Ends everything that runs, so that callers know to go elsewhere."""
        for run in (*self._runs.values(), *self._abandoned):
            run.cancel(_Cancel.CLOSING)
        await self.idle()

    def check_invariants(self) -> None:
        """Raises AssertionError where the table contradicts itself."""
        for key, run in self._runs.items():
            assert key == run.key, "a run is filed under another's key"
            assert not run.is_retired, "a run has ended and is still filed"
            is_waited_for = run.num_callers > 0 or run.farewell is not None
            assert is_waited_for or run.progress.has_ended, "a run is nobody's"
        assert self._places.total == self.num_running, "a place is taken by nobody, or nobody's place is used"
        self._results.check_invariants()

    def _start(self, key: ResultKey, call: Call, start: Start) -> _Run:
        self._places.acquire(key.tenant)
        run = _Run(key, call.fingerprint, self._grace_s if call.request_id else 0.0)
        self._runs[key] = run
        run.task = asyncio.create_task(self._drive(run, start), name="generation")
        # A task that is cancelled before its first step never enters its coroutine: no `finally` there would run.
        run.task.add_done_callback(lambda _: self._retire(run))
        return run

    async def _drive(self, run: _Run, start: Start) -> None:
        """The task of one generation: whatever ends it reaches its callers."""
        try:
            await start(run.key.request_id, run.progress.apply)
            _require_end(run.progress)
        except asyncio.CancelledError:
            self._end_cancelled(run)
            raise
        except Exception as error:
            if not isinstance(error, StemcacheError):
                _log.error("generation.crashed", error=type(error).__name__, request_id=run.key.request_id)
            if not run.progress.has_ended:
                run.progress.fail(error)
        finally:
            self._retire(run)

    def _end_cancelled(self, run: _Run) -> None:
        """A client's cancel ends with what was made; any other, or one before the first token, is an error."""
        started = run.progress.started
        if run.progress.has_ended:
            return
        if run.cancelled is not _Cancel.CLIENT or started is None:
            run.progress.fail(_cancel_error(run))
            return
        for sample in run.progress.samples():
            if sample.finish is None:
                run.progress.apply(Piece(sample.sample_index, "", pack(()), FinishReason.CANCELLED))
        decode_s = self._clock.monotonic_s() - started.first_token_s
        run.progress.apply(Finished(replace(started.timings, decode_s=decode_s)))

    def _retire(self, run: _Run) -> None:
        """Ends the filing of a run, once: its callers have their end, its id and its place are free."""
        if run.is_retired:
            return
        run.is_retired = True
        if not run.progress.has_ended:
            run.progress.fail(_cancel_error(run))
        run.stay()
        self._places.release(run.key.tenant)
        if run in self._abandoned:
            self._abandoned.remove(run)
            return
        del self._runs[run.key]
        if run.grace_s and run.progress.finished is not None:
            self._results.keep(run.key, run.fingerprint, run.progress)

    def _leave(self, run: _Run) -> None:
        run.num_callers -= 1
        if run.num_callers or run.progress.has_ended:
            return
        if run.grace_s:
            run.farewell = asyncio.get_running_loop().call_later(run.grace_s, self._abandon, run)
        else:
            self._abandon(run)

    def _abandon(self, run: _Run) -> None:
        del self._runs[run.key]
        self._abandoned.add(run)
        run.cancel(_Cancel.ABANDONED)


def _require_same(given: bytes, known: bytes) -> None:
    if given != known:
        raise AlreadyExistsError("this request_id was used for a request with another body; choose another id")


def _cancel_error(run: _Run) -> StemcacheError:
    if run.cancelled is not _Cancel.CLOSING:
        return CancelledRequestError("the generation was cancelled")
    if run.progress.started is None:
        return UnavailableError("this router is stopping; ask another one", CLOSING_RETRY_AFTER_S)
    return GenerationLostError("this router stopped while it answered", run.progress.samples(), CLOSING_RETRY_AFTER_S)


def _require_end(progress: Progress) -> None:
    if not progress.has_ended:
        raise RuntimeError("the generation stopped without an end")
