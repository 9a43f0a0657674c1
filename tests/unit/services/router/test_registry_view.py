"""The router's view of workers: who is refused by name, suspected, lost, and what is on its way to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.clock import ManualClock
from cache_store.index import Incarnation
from cache_store.registry import LEASE_S, PROTOCOL_VERSION, RegistryUnavailableError, WorkerLoad, WorkerRecord
from cache_store.request_token import TOKEN_LIFETIME_S
from services.router.assignments import REPORT_LAG_S
from services.router.registry_view import LOST_AFTER_S, RegistryView
from services.router.routing import WorkerView
from tests.support.worker_records import worker_record

DIGEST = "d" * 32


class Registry:
    def __init__(self) -> None:
        self.records: list[WorkerRecord] = []
        self.is_away = False

    async def workers(self) -> list[WorkerRecord]:
        if self.is_away:
            raise RegistryUnavailableError("away")
        return list(self.records)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = Registry()
        self.lost: list[Incarnation] = []
        self.there: set[str] = set()
        """Incarnations that answer when they are asked."""
        self.asked: list[Incarnation] = []
        self.view = RegistryView(self.registry, self.clock, {"m": DIGEST}, self.lost.append, self.is_there)

    async def is_there(self, record: WorkerRecord) -> bool:
        self.asked.append(record.incarnation)
        return record.incarnation in self.there

    async def poll(self, *records: WorkerRecord) -> None:
        self.registry.records = list(records)
        await self.view.poll()

    def only(self) -> WorkerView:
        (view,) = self.view.snapshot()
        return view


@pytest.fixture
def bench() -> Bench:
    return Bench()


A = Incarnation("a")


async def test_shows_the_last_report(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    await bench.poll(worker_record("a", draining=True))
    assert bench.only().record.draining
    assert not bench.view.is_serving


async def test_a_worker_that_said_that_it_leaves_does_not_come_back_from_that(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    bench.view.note_leaving(bench.only().record.incarnation)
    assert bench.only().record.draining
    await bench.poll(worker_record("a"))
    assert bench.only().record.draining, "a report from before has made it one that serves"
    await bench.poll(worker_record("a", incarnation="later"))
    assert not bench.only().record.draining


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1])
async def test_another_protocol_version_is_refused_by_name(bench: Bench, version: int) -> None:
    await bench.poll(worker_record("a"), worker_record("old", protocol_version=version))
    assert bench.only().record.worker_id == "a"
    (reason,) = bench.view.refused
    assert reason.startswith("old: ")
    assert f"version {version}" in reason
    await bench.poll(worker_record("a"))
    assert bench.view.refused == ()


async def test_another_tokenizer_is_refused_by_name(bench: Bench) -> None:
    await bench.poll(
        worker_record("same", tokenizer_digest=DIGEST),
        worker_record("textless", tokenizer_digest=""),
        worker_record("other", tokenizer_digest="e" * 32),
        worker_record("elsewhere", model="unknown", tokenizer_digest="e" * 32),
    )
    assert {view.record.worker_id for view in bench.view.snapshot()} == {"same", "textless", "elsewhere"}
    (reason,) = bench.view.refused
    assert reason.startswith("other: ")
    assert DIGEST in reason


async def test_a_registry_that_is_away_leaves_the_view(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    bench.registry.is_away = True
    bench.clock.advance(60)
    await bench.view.poll()
    assert not bench.view.is_reachable
    assert not bench.only().suspected
    assert bench.lost == []


async def test_a_registry_that_restarted_empty_loses_nobody(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    bench.clock.advance(0.5)
    await bench.poll()
    assert bench.only().suspected
    assert not bench.view.is_serving
    bench.clock.advance(0.5)
    await bench.poll(worker_record("a"))
    assert not bench.only().suspected
    assert bench.lost == []


async def test_a_registry_that_is_back_without_leases_loses_nobody_at_once(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    bench.registry.is_away = True
    bench.clock.advance(60)
    await bench.view.poll()
    bench.registry.is_away = False
    bench.clock.advance(0.5)
    await bench.poll()
    assert bench.only().suspected
    assert bench.lost == []
    bench.clock.advance(LOST_AFTER_S)
    await bench.poll()
    assert bench.lost == [A]


async def test_where_nobody_renews_those_that_answer_stay(bench: Bench) -> None:
    """Workers may be unable to reach the registry that this router reads."""
    a, b = worker_record("a"), worker_record("b")
    await bench.poll(a, b)
    assert bench.view.is_renewed
    assert bench.asked == [], "nobody is asked while somebody renews"
    bench.there = {"a"}
    for _ in range(20):
        bench.clock.advance(0.5)
        await bench.poll()
    assert bench.lost == ["b"]
    assert not bench.only().suspected
    assert bench.view.is_serving
    assert bench.view.records() == (a,)
    assert not bench.view.is_renewed
    assert bench.view.is_reachable
    await bench.poll(a)
    assert bench.view.is_renewed
    bench.there = set()
    bench.clock.advance(LOST_AFTER_S)
    await bench.poll()
    assert bench.lost == ["b", "a"]
    assert bench.view.is_renewed, "there is nobody who could renew"


async def test_who_alone_stops_to_renew_is_lost_though_it_answers(bench: Bench) -> None:
    a, b = worker_record("a"), worker_record("b")
    await bench.poll(a, b)
    bench.there = {"a", "b"}
    bench.clock.advance(LOST_AFTER_S)
    await bench.poll(b)
    assert bench.lost == [A]
    assert bench.asked == []


async def test_who_was_replaced_is_lost_though_it_answers(bench: Bench) -> None:
    await bench.poll(worker_record("a", incarnation="1"))
    bench.there = {"1"}
    await bench.poll()
    await bench.poll(worker_record("a", incarnation="2"))
    assert bench.lost == ["1"]
    await bench.poll()
    assert bench.lost == ["1"], "an old one came back"


async def test_a_request_token_expires_by_the_workers_clock(bench: Bench) -> None:
    record = replace(worker_record("a"), clock_unix_s=5e9)
    await bench.poll(record)
    bench.clock.advance(2.0)
    assert bench.view.token_expiry_s(record) == 5e9 + 2.0 + TOKEN_LIFETIME_S
    bench.registry.is_away = True
    await bench.view.poll()
    bench.clock.advance(60.0)
    assert bench.view.token_expiry_s(record) == 5e9 + 62.0 + TOKEN_LIFETIME_S


async def test_a_worker_that_stays_away_is_lost_once(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    bench.clock.advance(LOST_AFTER_S)
    await bench.poll()
    await bench.poll()
    assert bench.view.snapshot() == ()
    assert bench.lost == [A]


async def test_a_new_incarnation_replaces_the_old_one_at_once(bench: Bench) -> None:
    await bench.poll(worker_record("a", incarnation="1"))
    await bench.poll(worker_record("a", incarnation="2"))
    assert bench.only().record.incarnation == "2"
    assert bench.lost == ["1"]


async def test_a_refused_new_incarnation_replaces_the_old_one_too(bench: Bench) -> None:
    await bench.poll(worker_record("a", incarnation="1"))
    await bench.poll(worker_record("a", incarnation="2", protocol_version=99))
    assert bench.view.snapshot() == ()
    assert bench.lost == ["1"]


async def test_a_suspected_worker_is_trusted_again_when_its_lease_outlives_the_suspicion(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    bench.view.suspect(A)
    assert bench.only().suspected
    bench.clock.advance(LEASE_S)
    await bench.poll(worker_record("a"))
    assert not bench.only().suspected


def pending(bench: Bench) -> tuple[int, int]:
    view = bench.only()
    return view.pending_requests, view.pending_prefill_tokens


async def test_requests_on_their_way_are_added_to_the_report(bench: Bench) -> None:
    load = WorkerLoad(1, 0, 500, 0.0, 0)
    await bench.poll(worker_record("a", load=load))
    first = bench.view.assign(A, 100)
    second = bench.view.assign(A, 10)
    assert pending(bench) == (2, 110)
    first.first_token(bench.clock.monotonic_s())
    assert pending(bench) == (1, 10)
    first.end(bench.clock.monotonic_s())
    second.end(bench.clock.monotonic_s())
    assert pending(bench) == (0, 0)


async def test_what_a_report_must_contain_by_now_is_not_added_twice(bench: Bench) -> None:
    await bench.poll(worker_record("a", load=WorkerLoad(1, 1, 110, 0.0, 0)))
    bench.view.assign(A, 100)
    bench.view.assign(A, 10)
    bench.clock.advance(REPORT_LAG_S)
    assert pending(bench) == (0, 0)


async def test_a_request_in_a_long_step_counts_although_no_report_has_it(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    assignment = bench.view.assign(A, 100)
    bench.clock.advance(60 * REPORT_LAG_S)
    assert pending(bench) == (1, 100)
    assignment.first_token(bench.clock.monotonic_s())
    assert pending(bench) == (1, 0)
    assignment.end(bench.clock.monotonic_s())
    assert pending(bench) == (0, 0)


async def test_the_usual_time_of_a_request_is_learnt_from_those_that_made_tokens(bench: Bench) -> None:
    await bench.poll(worker_record("a"))
    now_s = bench.clock.monotonic_s()
    never_started = bench.view.assign(A, 1)
    never_started.end(now_s + 9)
    assert bench.only().request_s == 0
    for seconds in (2.0, 4.0):
        assignment = bench.view.assign(A, 1)
        assignment.first_token(now_s)
        assignment.end(now_s + seconds)
        assignment.end(now_s + 50)
    assert bench.only().request_s == pytest.approx(2.4)


async def test_records_are_those_listed(bench: Bench) -> None:
    await bench.poll(worker_record("b"), worker_record("a"))
    assert [record.worker_id for record in bench.view.records()] == ["a", "b"]
    assert bench.view.models() == ("m",)
    await bench.poll(worker_record("b"))
    assert [record.worker_id for record in bench.view.records()] == ["b"]
