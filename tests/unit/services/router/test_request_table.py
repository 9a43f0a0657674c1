"""Idempotent ids: attach, kept results, grace, bounds; and that neither a cancel nor an exception is ever lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache_store.clock import ManualClock
from cache_store.domain import TenantId
from cache_store.errors import (
    AlreadyExistsError,
    CancelledRequestError,
    LimitExceededError,
    UnavailableError,
    WorkerLostError,
)
from cache_store.registry import WorkerId
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from services.router.generation import Finished, FinishReason, GenerationEvent, Piece, Started, Take, Timings
from services.router.limits import Concurrency
from services.router.progress import Progress
from services.router.request_table import Attached, Call, RequestTable
from services.router.results import KeptResults, ResultBounds, ResultKey

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
TIMINGS = Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0)
STARTED = Started(4, CachedTokens(), WorkerId("w"), 1, False, 7, 1, TIMINGS, 1_000.0)


def piece(token: int, finish: FinishReason | None = None) -> Piece:
    return Piece(0, f"t{token}", pack([token]), finish)


class Source:
    """A generation that the test drives."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[GenerationEvent | Exception] = asyncio.Queue()
        self.num_started = 0
        self.num_closed = 0

    async def __call__(self, request_id: str, take: Take) -> None:
        self.num_started += 1
        try:
            while True:
                event = await self.queue.get()
                if isinstance(event, Exception):
                    raise event
                take(event)
                if isinstance(event, Finished):
                    return
        finally:
            self.num_closed += 1

    def put(self, *events: GenerationEvent | Exception) -> None:
        for event in events:
            self.queue.put_nowait(event)

    def whole(self) -> None:
        self.put(STARTED, piece(1), piece(2, FinishReason.STOP), Finished(TIMINGS))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def table(clock: ManualClock) -> AsyncIterator[RequestTable]:
    made = RequestTable(
        clock, Concurrency("concurrent requests", 4, 2), KeptResults(clock, ResultBounds()), grace_s=0.05
    )
    yield made
    await made.close()
    made.check_invariants()
    assert made.num_running == 0


def call(request_id: str | None = "r", tenant: TenantId = ACME, body: bytes = b"body") -> Call:
    return Call(tenant, request_id, body)


async def tokens(table: RequestTable, source: Source, which: Call) -> bytes:
    with table.attach(which, source) as attached:
        await attached.progress.ended()
        return attached.progress.samples()[0].tokens


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_retry_attaches_to_the_running_generation(table: RequestTable) -> None:
    source = Source()
    first = asyncio.create_task(tokens(table, source, call()))
    second = asyncio.create_task(tokens(table, source, call()))
    await settle()
    table.check_invariants()
    source.whole()
    assert await first == await second == pack([1, 2])
    assert source.num_started == 1


async def test_a_retry_is_given_the_kept_result_until_it_is_too_old(table: RequestTable, clock: ManualClock) -> None:
    source = Source()
    source.whole()
    await tokens(table, source, call())
    clock.advance(59.0)
    assert await tokens(table, source, call()) == pack([1, 2])
    assert source.num_started == 1
    clock.advance(2.0)
    source.whole()
    await tokens(table, source, call())
    assert source.num_started == 2


async def test_the_same_id_with_another_body_is_refused_running_and_kept(table: RequestTable) -> None:
    source = Source()
    running = asyncio.create_task(tokens(table, source, call()))
    await settle()
    with pytest.raises(AlreadyExistsError):
        await tokens(table, source, call(body=b"other"))
    source.whole()
    await running
    with pytest.raises(AlreadyExistsError):
        await tokens(table, source, call(body=b"other"))


async def test_another_tenants_id_is_absent(table: RequestTable) -> None:
    mine, theirs = Source(), Source()
    mine.whole()
    await tokens(table, mine, call())
    running = asyncio.create_task(tokens(table, Source(), call("running")))
    await settle()
    assert not table.cancel(GLOBEX, "running")
    assert not table.cancel(GLOBEX, "never was")
    theirs.whole()
    await tokens(table, theirs, call(tenant=GLOBEX, body=b"other"))
    assert theirs.num_started == 1
    assert table.cancel(ACME, "running")
    with pytest.raises(CancelledRequestError):
        await running


async def test_a_request_without_an_id_ends_with_its_caller(table: RequestTable) -> None:
    source = Source()
    caller = asyncio.create_task(tokens(table, source, call(None)))
    await settle()
    caller.cancel()
    await settle()
    assert (source.num_closed, table.num_running) == (1, 0)


async def test_a_request_with_an_id_waits_a_moment_for_a_retry(table: RequestTable) -> None:
    source = Source()
    source.put(STARTED, piece(1))
    caller = asyncio.create_task(tokens(table, source, call()))
    await settle()
    caller.cancel()
    await settle()
    assert table.num_running == 1
    table.check_invariants()
    retry = asyncio.create_task(tokens(table, source, call()))
    await asyncio.sleep(0.1)
    source.put(piece(2, FinishReason.STOP), Finished(TIMINGS))
    assert await retry == pack([1, 2])
    assert source.num_started == 1


async def test_a_request_with_an_id_ends_after_the_grace(table: RequestTable) -> None:
    source = Source()
    caller = asyncio.create_task(tokens(table, source, call()))
    await settle()
    caller.cancel()
    await asyncio.sleep(0.1)
    assert (source.num_closed, table.num_running) == (1, 0)
    source.whole()
    await tokens(table, source, call())
    assert source.num_started == 2


async def test_an_abandoned_id_is_free_at_once(table: RequestTable) -> None:
    stuck = asyncio.Event()

    async def slow_to_end(request_id: str, take: Take) -> None:
        try:
            await asyncio.sleep(60)
            take(STARTED)
        finally:
            await stuck.wait()

    caller = asyncio.create_task(tokens(table, slow_to_end, call()))  # type: ignore[arg-type]  # another start
    await settle()
    caller.cancel()
    await asyncio.sleep(0.1)
    source = Source()
    source.whole()
    assert await tokens(table, source, call()) == pack([1, 2])
    stuck.set()
    await settle()
    assert table.num_running == 0


async def test_an_error_reaches_all_callers_and_is_not_kept(table: RequestTable) -> None:
    source = Source()
    callers = [asyncio.create_task(tokens(table, source, call())) for _ in range(2)]
    await settle()
    source.put(STARTED, WorkerLostError("gone"))
    for caller in callers:
        with pytest.raises(WorkerLostError):
            await caller
    source.whole()
    assert await tokens(table, source, call()) == pack([1, 2])


@pytest.mark.parametrize("events", [(ZeroDivisionError(),), (STARTED, ZeroDivisionError())])
async def test_a_crash_reaches_the_caller(table: RequestTable, events: tuple[GenerationEvent | Exception, ...]) -> None:
    source = Source()
    source.put(*events)
    with pytest.raises(ZeroDivisionError):
        await tokens(table, source, call())


async def test_a_generation_that_just_stops_is_an_error(table: RequestTable) -> None:
    async def nothing(request_id: str, take: Take) -> None:
        take(STARTED)

    with pytest.raises(RuntimeError):
        await tokens(table, nothing, call())  # type: ignore[arg-type]  # another start


async def test_a_clients_cancel_ends_with_what_was_made(table: RequestTable) -> None:
    source = Source()
    source.put(STARTED, piece(1))
    caller = asyncio.create_task(tokens(table, source, call()))
    await settle()
    assert table.cancel(ACME, "r")
    assert await caller == pack([1])
    assert source.num_closed == 1
    assert not table.cancel(ACME, "r")
    with table.attach(call(), source) as kept:
        assert kept.progress.samples()[0].finish is FinishReason.CANCELLED


async def test_closing_sends_callers_elsewhere_and_keeps_what_they_have(table: RequestTable) -> None:
    before, after = Source(), Source()
    after.put(STARTED, piece(1))
    callers = [asyncio.create_task(tokens(table, source, call(None))) for source in (before, after)]
    await settle()
    await table.close()
    with pytest.raises(UnavailableError):
        await callers[0]
    with pytest.raises(WorkerLostError):
        await callers[1]


async def test_a_cancel_before_the_first_step_of_the_task_is_not_lost(table: RequestTable) -> None:
    source = Source()
    with table.attach(call(), source) as attached:
        assert table.cancel(ACME, "r")
        with pytest.raises(CancelledRequestError):
            await attached.progress.ended()
    assert table.num_running == 0


async def test_limits_of_a_tenant_and_of_all(table: RequestTable) -> None:
    source = Source()
    callers = [asyncio.create_task(tokens(table, source, call(None))) for _ in range(2)]
    await settle()
    with pytest.raises(LimitExceededError):
        await tokens(table, source, call(None))
    others = [asyncio.create_task(tokens(table, source, call(None, GLOBEX))) for _ in range(2)]
    await settle()
    with pytest.raises(UnavailableError):
        await tokens(table, source, call(None, TenantId("initech")))
    for caller in callers + others:
        caller.cancel()
    await settle()
    table.check_invariants()
    assert table.num_running == 0


async def test_a_slow_reader_gets_everything_in_one_piece(table: RequestTable) -> None:
    source = Source()
    with table.attach(call(None), source) as attached:
        events = attached.progress.events()
        source.put(STARTED, piece(1))
        seen = [await anext(events), await anext(events)]
        source.put(*(piece(token) for token in range(2, 50)), piece(50, FinishReason.STOP), Finished(TIMINGS))
        await settle()
        await asyncio.sleep(0.01)
        seen += [event async for event in events]
    assert seen[:2] == [STARTED, piece(1)]
    assert seen[2] == Piece(0, "".join(f"t{token}" for token in range(2, 51)), pack(range(2, 51)), FinishReason.STOP)
    assert len(seen) == 4


async def test_readers_are_shown_the_pieces_before_the_error(table: RequestTable) -> None:
    source = Source()
    source.put(STARTED, piece(1), WorkerLostError("gone"))
    seen: list[GenerationEvent] = []

    async def read(attached: Attached) -> None:
        async for event in attached.progress.events():
            seen.append(event)

    with table.attach(call(None), source) as attached, pytest.raises(WorkerLostError):
        await read(attached)
    assert seen == [STARTED, piece(1)]


def _ended(size: int) -> Progress:
    progress = Progress()
    progress.apply(STARTED)
    progress.apply(Piece(0, "", pack([1] * size), FinishReason.STOP))
    progress.apply(Finished(TIMINGS))
    return progress


def test_kept_results_are_bounded_and_the_largest_tenant_pays(clock: ManualClock) -> None:
    bounds = ResultBounds(max_per_tenant=3, max_bytes_per_tenant=8_000, max_bytes=10_000)
    results = KeptResults(clock, bounds)
    key = ResultKey
    for number in range(5):
        results.keep(key(ACME, str(number)), b"", _ended(10))
    results.check_invariants()
    assert [results.get(key(ACME, str(number))) is not None for number in range(5)] == [False, False, True, True, True]
    results.keep(key(GLOBEX, "large"), b"", _ended(1_500))
    results.keep(key(GLOBEX, "larger"), b"", _ended(1_700))
    results.check_invariants()
    assert results.get(key(GLOBEX, "large")) is None
    assert results.get(key(GLOBEX, "larger")) is not None
    assert results.get(key(ACME, "4")) is not None
    results.keep(key(GLOBEX, "too large"), b"", _ended(3_000))
    results.check_invariants()
    clock.advance(60.0)
    results.expire()
    assert results.size_bytes == 0
