"""When requests are sent and what their times count from. Lower bounds of real time only; a target that sleeps."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from dataclasses import dataclass, field

import pytest

from cache_store.tokens import pack
from services.loadtest.arrivals import Arrival, Bounds, ClosedLoop, OpenLoop, TraceTimes
from services.loadtest.driver import Driver, TenantLoad
from services.loadtest.live import Live
from services.loadtest.records import INTERRUPTED, OK, RequestRow
from services.loadtest.sessions import Session, Turn, Workload
from services.loadtest.targets import Answer, Call
from services.loadtest.token_source import stable_rng


@dataclass
class Sleepy:
    """A server that takes a while for everything."""

    takes_s: float = 0.0
    status: str = OK
    calls: list[Call] = field(default_factory=list)
    running: int = 0
    peak: int = 0

    async def send(self, call: Call, answer: Answer) -> None:
        self.calls.append(call)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(self.takes_s)
            answer.arrivals_s.append(time.perf_counter())
            answer.tokens.append(pack([7, 8]))
            answer.status, answer.completion_tokens = self.status, 2
        finally:
            self.running -= 1

    async def close(self) -> None:
        pass


def sessions(turns: int = 1, at_s: tuple[float, ...] = ()) -> Workload:
    made = (
        Session(
            f"s{number}",
            tuple(Turn((pack([number, turn]),), 2) for turn in range(turns)),
            at_s=at_s[number] if at_s else None,
            is_conversation=turns > 1,
        )
        for number in (itertools.count() if not at_s else range(len(at_s)))
    )
    return Workload("w", made, float(turns))


async def drive(
    target: Sleepy, arrival: Arrival, bounds: Bounds, workload: Workload, stop: asyncio.Event | None = None
) -> tuple[Driver, list[RequestRow]]:
    load = TenantLoad("a", 1.0, workload, arrival, bounds, target, stable_rng("t"))
    driver = Driver([load], 0.05, Live())
    await driver.run(stop or asyncio.Event())
    return driver, driver.rows([None] * len(driver.sent))


async def test_an_open_loop_counts_the_wait_from_when_a_request_was_due() -> None:
    """Coordinated omission: one place, five requests due at once; a client that waits its turn hides the queue."""
    open_loop = OpenLoop(math.inf, max_concurrency=1)
    _, rows = await drive(Sleepy(0.02), open_loop, Bounds(5, None), sessions())
    assert [row.intended_s for row in rows] == [0.0] * 5
    assert max(row.e2el_s for row in rows) >= 5 * 0.0199
    assert max(row.ttft_s or 0.0 for row in rows) >= 5 * 0.0199
    assert max(row.schedule_lag_s for row in rows) >= 4 * 0.0199


async def test_a_slow_server_gets_as_many_requests_of_an_open_loop() -> None:
    slow, quick = Sleepy(0.2), Sleepy(0.0)
    for target in (slow, quick):
        await drive(target, OpenLoop(200.0, math.inf), Bounds(20, None), sessions())
    assert len(slow.calls) == len(quick.calls) == 20
    assert slow.peak > 5


async def test_a_closed_loop_has_as_many_callers_as_it_says() -> None:
    target = Sleepy(0.005)
    _, rows = await drive(target, ClosedLoop(3), Bounds(20, None), sessions())
    assert (len(rows), target.peak) == (20, 3)


async def test_a_request_ends_when_its_answer_was_whole() -> None:
    class Told(Sleepy):
        async def send(self, call: Call, answer: Answer) -> None:
            answer.ended_s = time.perf_counter()
            await Sleepy.send(self, call, answer)

    for status, is_before in ((OK, True), ("DATA_LOSS", False)):
        _, rows = await drive(Told(0.02, status=status), ClosedLoop(1), Bounds(1, None), sessions())
        assert (rows[0].end_s - rows[0].sent_s < 0.0199) is is_before


async def test_there_are_never_more_callers_than_requests() -> None:
    target = Sleepy()
    tasks: list[int] = []

    async def counted(call: Call, answer: Answer) -> None:
        tasks.append(len(asyncio.all_tasks()))
        await Sleepy.send(target, call, answer)

    target.send = counted  # type: ignore[method-assign]  # the same, counting
    await drive(target, ClosedLoop(10_000), Bounds(2, None), sessions())
    assert len(tasks) == 2
    assert max(tasks) < 20


async def test_the_next_turn_carries_the_answer() -> None:
    target = Sleepy()
    _, rows = await drive(target, ClosedLoop(1), Bounds(5, None), sessions(turns=3))
    assert [call.prompt for call in target.calls] == [
        pack([0, 0]),
        pack([0, 0, 7, 8, 0, 1]),
        pack([0, 0, 7, 8, 0, 1, 7, 8, 0, 2]),
        pack([1, 0]),
        pack([1, 0, 7, 8, 1, 1]),
    ]
    assert [(row.session, row.turn) for row in rows] == [("s0", 0), ("s0", 1), ("s0", 2), ("s1", 0), ("s1", 1)]
    assert rows[1].intended_s >= rows[0].end_s - 1e-6


async def test_a_failed_turn_ends_its_conversation() -> None:
    target = Sleepy(status="UNAVAILABLE")
    _, rows = await drive(target, OpenLoop(math.inf), Bounds(6, None), sessions(turns=3))
    assert [row.status for row in rows] == ["UNAVAILABLE"] * 2


async def test_a_trace_keeps_its_times() -> None:
    _, rows = await drive(Sleepy(), TraceTimes(), Bounds(None, math.inf), sessions(at_s=(0.0, 0.01, 0.03)))
    assert [row.intended_s for row in rows] == [0.0, 0.01, 0.03]
    assert all(row.sent_s >= row.intended_s - 0.002 for row in rows)


@pytest.mark.parametrize("arrival", [OpenLoop(1_000.0), ClosedLoop(2)])
async def test_nothing_is_sent_after_the_duration_and_what_outlasts_it_is_ended(arrival: Arrival) -> None:
    driver, rows = await drive(Sleepy(30.0), arrival, Bounds(None, 0.05), sessions())
    assert rows
    assert {row.status for row in rows} == {INTERRUPTED}
    assert all(row.intended_s <= 0.05 for row in rows)
    assert not driver.interrupted


async def test_a_stop_ends_it_with_all_that_there_is() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    driver, rows = await drive(Sleepy(0.02), ClosedLoop(1), Bounds(None, math.inf), sessions(), stop)
    assert driver.interrupted
    assert [row.status for row in rows[:-1]] == [OK] * (len(rows) - 1)
    assert rows[-1].status in (OK, INTERRUPTED)


async def test_what_fails_within_is_not_swallowed() -> None:
    class Broken(Sleepy):
        async def send(self, call: Call, answer: Answer) -> None:
            raise KeyError("bug")

    with pytest.raises(ExceptionGroup):
        await drive(Broken(), OpenLoop(math.inf), Bounds(1, None), sessions())


def test_the_live_view_forgets_nothing_that_it_counts() -> None:
    live = Live()
    live.started()
    answer = Answer(arrivals_s=[1.5], status=OK, prompt_tokens=10, cached_tokens=5, completion_tokens=2)
    live.ended(answer, 1.0)
    live.started()
    view = live.view()
    assert (view.running, view.ended, view.failed, view.hit_rate, view.ttft_p50_s) == (1, 1, 0, 0.5, 0.5)
    live.ended(Answer(status="UNAVAILABLE"), 2.0)
    assert live.view().failed == 1
    assert Live().view().hit_rate is None
