"""Sends what tenants' workloads hold, when it is meant to be sent, and keeps what came of each request.

Times are seconds since `start`, by one monotonic clock. An open loop never waits for an answer: where the client is
late, that shows as the schedule's lag and counts into the latencies. Owns the requests that run; one event loop.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from cache_store.tokens import PackedTokens, count
from services.loadtest.arrivals import Arrival, Bounds, ClosedLoop
from services.loadtest.live import Live
from services.loadtest.records import INTERRUPTED, RequestRow
from services.loadtest.schedules import Schedule, bounded, drawn
from services.loadtest.sessions import Session, Workload
from services.loadtest.targets import Answer, Call, Target

_US = 6
_TIDY_S = 1.0


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One tenant's part of the run."""

    tenant: str
    weight: float
    workload: Workload
    arrival: Arrival
    bounds: Bounds
    target: Target
    rng: np.random.Generator


@dataclass(slots=True)
class Sent:
    """A request that was sent."""

    load: TenantLoad
    session: Session
    turn: int
    parts: tuple[PackedTokens, ...]
    max_tokens: int
    intended_s: float
    sent_s: float
    request_id: str
    end_s: float = 0.0
    answer: Answer = field(default_factory=Answer)


class Driver:
    """Runs all tenants' loads at once. One run only."""

    def __init__(self, loads: Sequence[TenantLoad], drain_s: float, live: Live) -> None:
        """`drain_s`: how long running requests may go on after nothing is sent any more."""
        self._loads = loads
        self._drain_s = drain_s
        self._live = live
        self._start_s = 0.0
        self.sent: list[Sent] = []
        self.interrupted = False

    def now_s(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start_s

    async def run(self, stop: asyncio.Event) -> float:
        """Until all was sent and answered, or `stop` is set; how long it took. What runs then is ended."""
        schedules = [await drawn(each.workload, each.arrival, each.bounds, each.rng, stop) for each in self._loads]
        gc.collect()
        tidying = asyncio.create_task(_keep_collections_short())
        self._start_s = time.perf_counter()
        sending = asyncio.create_task(self._send_all(schedules))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((sending, stopping), timeout=self._time_limit_s(), return_when=asyncio.FIRST_COMPLETED)
        self.interrupted = stop.is_set()
        for task in (stopping, tidying, sending):
            task.cancel()
        ended = (await asyncio.gather(sending, tidying, return_exceptions=True))[0]
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            raise ended
        return max((each.end_s for each in self.sent), default=self.now_s())

    def _time_limit_s(self) -> float | None:
        limits = [load.bounds.duration_s for load in self._loads]
        known = [each for each in limits if each is not None]
        return max(known) + self._drain_s if len(known) == len(limits) and max(known) < math.inf else None

    async def _send_all(self, schedules: Sequence[Schedule]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for load, schedule in zip(self._loads, schedules, strict=True):
                if isinstance(load.arrival, ClosedLoop):
                    sessions = bounded(load.workload.sessions, load.bounds)
                    for _ in range(_num_callers(load.arrival, load.bounds)):
                        tasks.create_task(self._caller(load, sessions))
                else:
                    tasks.create_task(self._open(load, schedule, load.arrival.max_concurrency))

    async def _open(self, load: TenantLoad, schedule: Schedule, limit: int | None) -> None:
        places = asyncio.Semaphore(limit) if limit else None
        async with asyncio.TaskGroup() as tasks:
            for at_s, session in schedule:
                await self._sleep_until(at_s)
                tasks.create_task(self._session(load, session, at_s, places))

    async def _caller(self, load: TenantLoad, sessions: Iterator[Session]) -> None:
        for session in sessions:
            now_s = self.now_s()
            if load.bounds.duration_s is not None and now_s >= load.bounds.duration_s:
                return
            await self._session(load, session, now_s, None)

    async def _session(self, load: TenantLoad, session: Session, at_s: float, places: asyncio.Semaphore | None) -> None:
        """All turns, each with the answers before it; a turn that failed ends the session."""
        said: tuple[PackedTokens, ...] = ()
        for number, turn in enumerate(session.turns):
            if number:
                at_s += turn.think_s
                if load.bounds.duration_s is not None and at_s >= load.bounds.duration_s:
                    return
                await self._sleep_until(at_s)
            said += turn.parts
            async with _place(places):
                sent = Sent(load, session, number, said, turn.max_tokens, at_s, self.now_s(), uuid.uuid4().hex)
                await self._request(sent, session)
            if not sent.answer.completed:
                return
            said += (sent.answer.packed,)
            at_s = self.now_s()

    async def _request(self, sent: Sent, session: Session) -> None:
        self.sent.append(sent)
        self._live.started()
        prompt = sent.parts[0] if len(sent.parts) == 1 else PackedTokens(b"".join(sent.parts))
        call = Call(prompt, sent.max_tokens, session.name if session.is_conversation else "", sent.request_id)
        try:
            await sent.load.target.send(call, sent.answer)
        except asyncio.CancelledError:
            sent.answer.status = INTERRUPTED
            raise
        finally:
            whole_s = sent.answer.ended_s if sent.answer.completed else None
            sent.end_s = self.now_s() if whole_s is None else whole_s - self._start_s
            self._live.ended(sent.answer, sent.intended_s + self._start_s)

    async def _sleep_until(self, at_s: float) -> None:
        left_s = at_s - self.now_s()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def rows(self, bounds: Sequence[int | None]) -> list[RequestRow]:
        """All requests by intended time; `bounds` are their cacheable tokens, in the order of `sent`."""
        order = sorted(range(len(self.sent)), key=lambda each: (self.sent[each].intended_s, each))
        return [self._row(index, self.sent[each], bounds[each]) for index, each in enumerate(order)]

    def _row(self, index: int, sent: Sent, cacheable_tokens: int | None) -> RequestRow:
        answer, session = sent.answer, sent.session
        arrivals = tuple(round(each - self._start_s, _US) for each in answer.arrivals_s)
        numbers = tuple(answer.counts) or tuple(map(count, answer.tokens))
        return RequestRow(
            index=index,
            tenant=sent.load.tenant,
            workload=sent.load.workload.name,
            intended_s=round(sent.intended_s, _US),
            sent_s=round(sent.sent_s, _US),
            end_s=round(sent.end_s, _US),
            status=answer.status,
            request_id=sent.request_id,
            session=session.name if session.is_conversation else None,
            turn=session.first_turn + sent.turn if session.is_conversation else None,
            prefix_group=session.prefix_group,
            first_token_s=arrivals[0] if arrivals else None,
            arrivals_s=arrivals,
            arrival_tokens=() if set(numbers) <= {1} else numbers,
            prompt_tokens=answer.prompt_tokens or sum(map(count, sent.parts)),
            completion_tokens=answer.completion_tokens or sum(numbers),
            max_tokens=sent.max_tokens,
            cached_tokens=answer.cached_tokens,
            cached_by_tier=answer.cached_by_tier,
            cacheable_tokens=cacheable_tokens,
            written_tokens=answer.written_tokens,
            prefix_tokens=session.prefix_tokens,
            worker=answer.worker,
            attempts=answer.attempts,
            degraded=answer.degraded,
            server=answer.server,
            error=answer.error,
        )


async def _keep_collections_short() -> None:
    """Until it is cancelled: what came of requests stays, and is not looked through again while others run."""
    try:
        while True:
            gc.freeze()
            await asyncio.sleep(_TIDY_S)
            gc.collect(1)
    finally:
        gc.unfreeze()


def _num_callers(closed_loop: ClosedLoop, bounds: Bounds) -> int:
    """Never more than there are requests for them."""
    limit = bounds.num_requests
    return closed_loop.concurrency if limit is None else min(closed_loop.concurrency, limit)


@asynccontextmanager
async def _place(places: asyncio.Semaphore | None) -> AsyncIterator[None]:
    if places is None:
        yield
    else:
        async with places:
            yield
