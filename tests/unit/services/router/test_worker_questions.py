"""Questions to several workers at once, over real channels: late, lost, cancelled and refused ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.clock import SystemClock
from cache_store.errors import DeadlineError, LimitExceededError, WorkerLostError
from cache_store.registry import WorkerRecord
from cache_store.request_token import verify
from services.router.worker_client import WorkerPool
from services.router.worker_questions import Questioner
from services.tenants.directory import KnownTenant
from services.tenants.model import new_tenant
from tests.support.domains import make_domain
from tests.support.worker_records import worker_record

KEY = b"k" * 32
ACME = make_domain("acme")
KNOWN = KnownTenant(replace(new_tenant("acme", 0.0), epoch_number=3), 17)


class Listing(worker_pb2_grpc.WorkerServiceServicer):
    """Answers ListPins by what its name says; `open` counts calls that are still open."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.open = 0
        self.tokens: list[bytes] = []

    async def ListPins(self, request: Any, context: Any) -> worker_pb2.ListPinsResponse:  # noqa: N802
        self.tokens.append(request.request_token)
        self.open += 1
        try:
            if self.how == "hangs":
                await asyncio.Event().wait()
            if self.how == "refuses":
                quota = error_details_pb2.QuotaFailure()
                quota.violations.add(subject="pinned blocks")
                status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="too many")
                status.details.add().Pack(quota)
                told = rpc_status.to_status(status)
                await context.abort(told.code, told.details, told.trailing_metadata)
            return worker_pb2.ListPinsResponse(pins=[worker_pb2.WorkerPin(pin_id="p")])
        finally:
            self.open -= 1


@asynccontextmanager
async def serving(*hows: str) -> AsyncIterator[tuple[list[WorkerRecord], list[Listing]]]:
    servers, records, listings = [], [], []
    for at, how in enumerate(hows):
        server, listing = grpc.aio.server(), Listing(how)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(listing, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        listings.append(listing)
        records.append(worker_record(f"w{at}", address=f"127.0.0.1:{port}"))
    yield records, listings
    for server in servers:
        await server.stop(0)


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    await pool.close()


async def list_pins(stub: Any, token: bytes, wait_s: float) -> worker_pb2.ListPinsResponse:
    response: worker_pb2.ListPinsResponse = await stub.ListPins(
        worker_pb2.ListPinsRequest(request_token=token), timeout=wait_s
    )
    return response


def asking(pool: WorkerPool, workers: list[WorkerRecord], timeout_s: float | None) -> Any:
    return Questioner(pool, KEY, lambda _: SystemClock().unix_s() + 15.0).ask(
        workers, KNOWN, lambda _: ACME, list_pins, timeout_s
    )


async def test_each_worker_gets_a_token_of_its_own(pool: WorkerPool) -> None:
    async with serving("answers", "answers") as (workers, listings):
        answers = await asking(pool, workers, None)
    assert [worker.worker_id for worker, _ in answers.given] == ["w0", "w1"]
    for worker, listing in zip(workers, listings, strict=True):
        claims = verify(KEY, listing.tokens[0], worker.incarnation, SystemClock().unix_s())
        assert (claims.domain, claims.fence_order, claims.control_generation) == (ACME, KNOWN.tenant.fence.order, 17)


async def test_a_late_worker_is_an_error_beside_the_answers_of_others(pool: WorkerPool) -> None:
    async with serving("hangs", "answers") as (workers, _):
        answers = await asking(pool, workers, 0.3)
    assert [worker.worker_id for worker, _ in answers.given] == ["w1"]
    assert [type(error) for error in answers.errors] == [DeadlineError]


async def test_a_worker_that_is_lost_ends_its_question_at_once(pool: WorkerPool) -> None:
    async with serving("hangs") as (workers, [listing]):
        asked = asyncio.create_task(asking(pool, workers, None))
        while not listing.open:
            await asyncio.sleep(0.01)
        pool.lose(workers[0].incarnation)
        answers = await asyncio.wait_for(asked, 5)
    assert [type(error) for error in answers.errors] == [WorkerLostError]


async def test_who_asks_no_longer_leaves_no_question_behind(pool: WorkerPool) -> None:
    async with serving("hangs", "hangs") as (workers, listings):
        asked = asyncio.create_task(asking(pool, workers, None))
        while not all(listing.open for listing in listings):
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        while any(listing.open for listing in listings):
            await asyncio.sleep(0.01)


async def test_a_limit_of_the_tenant_comes_with_its_name(pool: WorkerPool) -> None:
    async with serving("refuses") as (workers, _):
        answers = await asking(pool, workers, None)
    (error,) = answers.errors
    assert isinstance(error, LimitExceededError)
    assert (error.subject, str(error)) == ("pinned blocks", "too many")


async def test_a_worker_that_is_not_there_is_lost(pool: WorkerPool) -> None:
    answers = await asking(pool, [worker_record("w", address="127.0.0.1:1")], 5)
    assert [type(error) for error in answers.errors] == [WorkerLostError]
