"""The engine's thread: one report per step, cancellation, idle checks, and what happens when it dies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from cache_store.clock import Clock, ManualClock, SystemClock
from cache_store.domain import DomainTag, TenantId
from cache_store.errors import InvalidRequestError, WorkerLostError
from cache_store.events import BlockChange, BlockEvent
from cache_store.registry import MAX_TENANTS_TOLD
from cache_store.tokens import pack
from cache_store.usage import CachedTokens, TenantUse
from tests.support.domains import make_domain
from tests.support.scripted_engine import LOAD, ScriptedEngine
from worker.engine_thread import TICK_S, EngineThread
from worker.outbox import SampleTokens
from worker.requests import CacheMode, EngineOutput, EngineRequest, Finish, Finished, Generated, RequestKey, Started
from worker.sampling import SamplingParams

SAMPLING = SamplingParams(0.0, 1.0, 0, 0, 4, 0, ())
EVENT = BlockEvent(DomainTag(b"t" * 16), 0, BlockChange.STORED, b"d" * 16)


def make_request(key: int) -> EngineRequest:
    return EngineRequest(RequestKey(key), make_domain(), pack([1, 2, 3]), SAMPLING, 1, CacheMode.READ_WRITE)


def finish(key: int) -> tuple[EngineOutput, ...]:
    request = RequestKey(key)
    return (
        Started(request, CachedTokens(0)),
        Generated(request, 0, (9,), Finish.LENGTH),
        Finished(request, 0.0, 0.0, 0.0, 0),
    )


class Harness:
    """A thread over a scripted engine, and the events that it told."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.engine = ScriptedEngine()
        self.events: list[BlockEvent] = []
        self.thread = EngineThread(self.engine, self.on_events, clock or SystemClock(), idle_check_after_s=0.01)

    def on_events(self, events: Sequence[BlockEvent]) -> None:
        self.events.extend(events)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    harness.thread.start()
    yield harness
    await harness.thread.stop(5)


async def test_a_request_runs_on_the_engine_thread_and_its_outputs_come_to_its_outbox(harness: Harness) -> None:
    harness.engine.events.append(EVENT)
    harness.engine.script.append(lambda: finish(1))
    outbox = harness.thread.submit(make_request(1))
    items = await outbox.take()
    assert items[1] == SampleTokens(0, pack([9]), Finish.LENGTH)
    assert isinstance(items[-1], Finished)
    assert harness.events == [EVENT]
    assert len(harness.engine.threads) == 1
    assert threading.get_ident() not in harness.engine.threads


async def test_one_step_makes_one_call_into_the_loop(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    calls = []
    original = loop.call_soon_threadsafe

    def counting(*args: object, **options: object) -> asyncio.Handle:
        if threading.current_thread().name == "engine":
            calls.append(args)
        return original(*args, **options)  # type: ignore[arg-type]

    outboxes = [harness.thread.submit(make_request(key)) for key in (1, 2, 3)]
    await harness.thread.call(lambda _: None, 5)
    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    harness.engine.script.append(lambda: (*finish(1), *finish(2), *finish(3)))
    assert [len(await outbox.take()) for outbox in outboxes] == [3, 3, 3]
    assert len(calls) == 1


async def test_a_refused_request_fails_alone(harness: Harness) -> None:
    harness.engine.refuse.add(RequestKey(1))
    refused = harness.thread.submit(make_request(1))
    with pytest.raises(InvalidRequestError):
        await refused.take()
    harness.engine.script.append(lambda: finish(2))
    assert await harness.thread.submit(make_request(2)).take()


async def test_closing_an_open_request_cancels_it_and_an_ended_one_does_not(harness: Harness) -> None:
    harness.engine.script.append(lambda: finish(1))
    await harness.thread.submit(make_request(1)).take()
    harness.thread.close(RequestKey(1))
    harness.thread.submit(make_request(2))
    harness.thread.close(RequestKey(2))
    await harness.thread.call(lambda _: None, 5)
    assert harness.engine.cancelled == [RequestKey(2)]
    assert harness.thread.num_open == 0


async def test_output_of_a_closed_request_is_dropped(harness: Harness) -> None:
    harness.thread.submit(make_request(1))
    harness.thread.close(RequestKey(1))
    harness.engine.script.append(lambda: finish(1))
    await harness.thread.call(lambda _: None, 5)
    assert harness.thread.healthy


async def test_what_can_wait_is_done_when_there_is_nothing_else_to_do(harness: Harness) -> None:
    left: list[int] = []

    def step() -> Sequence[EngineOutput]:
        left.append(harness.engine.num_idle_steps)
        return finish(1) if len(left) == 3 else ()

    harness.engine.num_idle_steps = 5
    harness.engine.script.extend([step] * 3)
    outbox = harness.thread.submit(make_request(1))
    await outbox.take()
    async with asyncio.timeout(5):
        while harness.engine.num_idle_steps:
            await asyncio.sleep(0.001)
    assert len(set(left)) == 1, "work comes first"


async def test_invariants_are_checked_once_per_idle_time(harness: Harness) -> None:
    while harness.engine.num_checks == 0:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert harness.engine.num_checks == 1


async def test_an_idle_engine_is_told_that_time_passes_and_its_events_arrive() -> None:
    clock = ManualClock()
    harness = Harness(clock)
    harness.thread.start()
    await harness.thread.call(lambda _: None, 5)
    assert harness.engine.num_ticks == 0
    harness.engine.due = [EVENT]
    clock.advance(TICK_S)
    while not harness.events:
        await asyncio.sleep(0.01)
    await harness.thread.stop(5)
    assert harness.events == [EVENT]
    assert harness.engine.num_ticks == 1


async def test_a_call_returns_what_the_function_returns_and_raises_what_it_raises(harness: Harness) -> None:
    assert await harness.thread.call(lambda engine: engine.load(), 5) == LOAD
    with pytest.raises(ZeroDivisionError):
        await harness.thread.call(lambda _: 1 // 0, 5)
    assert harness.thread.healthy


async def test_when_the_engine_raises_every_open_request_fails_and_health_is_gone(harness: Harness) -> None:
    def break_down() -> tuple[EngineOutput, ...]:
        raise MemoryError("broken")

    waiting = harness.thread.submit(make_request(1))
    harness.engine.script.append(break_down)
    breaking = harness.thread.submit(make_request(2))
    for outbox in (waiting, breaking):
        with pytest.raises(WorkerLostError):
            await outbox.take()
    assert not harness.thread.healthy
    assert isinstance(harness.thread.failure, MemoryError)
    with pytest.raises(WorkerLostError):
        harness.thread.submit(make_request(3))
    with pytest.raises(WorkerLostError):
        await harness.thread.call(lambda _: None, 5)


async def test_the_tenants_part_of_the_load_is_that_of_the_idle_engine(harness: Harness) -> None:
    harness.engine.uses = [TenantUse(TenantId(f"t{at}"), 0, 9, at, 0, 0, 0) for at in range(MAX_TENANTS_TOLD + 1)]
    await harness.thread.call(lambda _: None, 5)
    while harness.thread.load.tenants != tuple(harness.engine.uses):
        await asyncio.sleep(0.01)
    assert harness.thread.load.used_blocks == LOAD.used_blocks


async def test_a_busy_engine_is_not_asked_for_it_after_every_step(harness: Harness) -> None:
    for _ in range(200):
        harness.engine.script.append(tuple)
    harness.engine.script.append(lambda: finish(1))
    harness.thread.submit(make_request(1))
    while harness.engine.script:
        await asyncio.sleep(0)
    assert harness.engine.num_uses_asked < 200


async def test_what_changes_in_an_idle_engine_is_told(harness: Harness) -> None:
    await harness.thread.call(lambda _: None, 5)
    harness.engine.uses = [TenantUse(TenantId("acme"), 0, 9, 1, 0, 0, 0)]
    while not harness.thread.load.tenants:
        await asyncio.sleep(0.01)


async def test_a_broken_invariant_ends_the_thread() -> None:
    class Contradicting(ScriptedEngine):
        def check_invariants(self) -> None:
            raise AssertionError("two owners of one slot")

    thread = EngineThread(Contradicting(), lambda _: None, SystemClock(), idle_check_after_s=0.01)
    thread.start()
    await thread.wait_ended()
    assert isinstance(thread.failure, AssertionError)


async def test_a_consumer_of_events_that_fails_ends_the_worker() -> None:
    def refuse(_: Sequence[BlockEvent]) -> None:
        raise ValueError("gap")

    engine = ScriptedEngine()
    thread = EngineThread(engine, refuse, SystemClock())
    engine.events.append(EVENT)
    thread.start()
    with pytest.raises(WorkerLostError):
        await thread.call(lambda _: None, 5)
    assert isinstance(thread.failure, ValueError)
    await thread.stop(5)


async def test_a_stop_ends_what_is_open_as_lost(harness: Harness) -> None:
    outbox = harness.thread.submit(make_request(1))
    await harness.thread.stop(5)
    with pytest.raises(WorkerLostError):
        await outbox.take()
    assert harness.thread.failure is None


async def test_a_hanging_step_is_seen_and_can_be_abandoned(harness: Harness) -> None:
    release = threading.Event()

    def hang() -> tuple[EngineOutput, ...]:
        release.wait(10)
        return ()

    harness.engine.script.append(hang)
    outbox = harness.thread.submit(make_request(1))
    await asyncio.sleep(0.02)
    assert harness.thread.stalled_s() > 0
    harness.thread.abandon(TimeoutError("hangs"))
    release.set()
    with pytest.raises(WorkerLostError):
        await outbox.take()


async def test_a_reader_that_pauses_is_no_hanging_step(harness: Harness) -> None:
    harness.engine.script.append(lambda: finish(1))
    harness.thread.submit(make_request(1))
    await harness.thread.call(lambda _: None, 5)
    await asyncio.sleep(0.02)
    assert harness.thread.num_open == 1
    assert harness.thread.stalled_s() == 0
