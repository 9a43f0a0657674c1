"""However a departure ends, the worker says afterwards what is true: that it stays, or that it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import ManualClock
from cache_store.errors import PreconditionError, UnavailableError
from cache_store.index import Incarnation
from tests.support.memory_stores import MemoryStores
from tests.support.worker_host import client_of, digest_config, digest_domain, drain_order, running_workers
from worker import rpc_departure
from worker.host import WorkerHost
from worker.rpc_departure import Departure, stays_service
from worker.rpc_retire import Farewell, Identity, Retirement, Taker

LEAVER, TAKER = Incarnation("a" * 32), Incarnation("b" * 32)
ASKED, BEGUN, GIVING = "asked", "begun", "giving"
"""How far a departure has come."""

PHASES = pytest.mark.parametrize("phase", [ASKED, BEGUN, GIVING])
NUM_STEPS = 24
"""Of the event loop, beyond which nothing but the network is waited for."""


class Leaver(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """A departure that stops where it is told to, and the only other worker, which stays unless told otherwise."""

    def __init__(self, stop_at: str = "", failing_at: str = "") -> None:
        self.stop_at, self.failing_at = stop_at, failing_at
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.taker_stays = True
        self.said: list[bool] = []
        """Whether it stays, at each answer of the other one."""
        self.drains = False
        self.ended = asyncio.Event()
        self.address = ""
        identity = Identity(LEAVER, b"k" * 32, 16, lambda: "", lambda: 0)
        self.departure = Departure(
            cast(Retirement, self), identity, lambda: not self.drains, self.begin, self.ended.set, ManualClock()
        )

    async def begin(self) -> None:
        self.drains = True
        await self.come_to(BEGUN)

    async def run(self, takers: Sequence[Taker], grace_s: float) -> Farewell:
        """In a retirement's place."""
        assert [taker.incarnation for taker in takers] == [TAKER]
        assert not self.departure.stays
        await self.come_to(GIVING)
        return Farewell(1, 1, 0)

    async def come_to(self, phase: str) -> None:
        if phase == self.stop_at:
            self.reached.set()
            await self.go_on.wait()
        await asyncio.sleep(0)
        if phase == self.failing_at:
            raise RuntimeError("injected")

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """The other worker's answer."""
        assert request.service == stays_service(TAKER)
        self.said.append(self.departure.stays)
        await self.come_to(ASKED)
        states = health_pb2.HealthCheckResponse
        return states(status=states.SERVING if self.taker_stays else states.NOT_SERVING)

    def leave(self) -> asyncio.Task[worker_pb2.DrainResponse]:
        peer = worker_pb2.DrainPeer(address=self.address, incarnation=TAKER)
        return asyncio.create_task(self.departure.obey(worker_pb2.DrainRequest(peers=[peer])))

    async def check(self, *, has_left: bool) -> None:
        """What is said, and what is done, agree."""
        assert self.departure.stays is not has_left
        assert self.departure.has_left is has_left
        if has_left:
            await asyncio.wait_for(self.ended.wait(), 10)


@asynccontextmanager
async def leaver(**options: str) -> AsyncIterator[Leaver]:
    made, server = Leaver(**options), grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(made, server)
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield made
    finally:
        made.go_on.set()
        await made.departure.close()
        await server.stop(0)


async def test_one_that_comes_to_its_end_has_left() -> None:
    async with leaver() as made:
        assert made.departure.stays
        assert (await made.leave()).moved_blocks == 1
        assert made.said == [False], "it asks before it says that it does not stay"
        await made.check(has_left=True)


@PHASES
async def test_who_gave_the_order_may_go_away(phase: str) -> None:
    async with leaver(stop_at=phase) as made:
        asker = made.leave()
        await made.reached.wait()
        asker.cancel()
        await asyncio.wait((asker,))
        assert asker.cancelled()
        assert not made.departure.stays
        with pytest.raises(PreconditionError, match="leaving already"):
            await made.leave()
        made.go_on.set()
        await asyncio.wait_for(made.ended.wait(), 10)
        await made.check(has_left=True)


async def test_refused_with_nobody_to_hear_it_it_stays() -> None:
    async with leaver(stop_at=ASKED) as made:
        made.taker_stays = False
        asker = made.leave()
        await made.reached.wait()
        asker.cancel()
        made.go_on.set()
        await until(lambda: made.departure.stays)
        await made.check(has_left=False)


async def test_where_nobody_stays_it_stays_and_may_be_told_again() -> None:
    async with leaver() as made:
        made.taker_stays = False
        with pytest.raises(PreconditionError, match="none of the workers"):
            await made.leave()
        await made.check(has_left=False)
        made.taker_stays = True
        await made.leave()
        await made.check(has_left=True)


async def test_what_goes_wrong_while_it_asks_leaves_it_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("injected")

    async with leaver() as made:
        with monkeypatch.context() as patched:
            patched.setattr(rpc_departure, "peer_channel", broken)
            with pytest.raises(RuntimeError):
                await made.leave()
        await made.check(has_left=False)
        await made.leave()
        await made.check(has_left=True)


@pytest.mark.parametrize("phase", [BEGUN, GIVING])
async def test_what_goes_wrong_once_it_refuses_requests_ends_in_leaving(phase: str) -> None:
    async with leaver(failing_at=phase) as made:
        with pytest.raises(RuntimeError):
            await made.leave()
        await made.check(has_left=True)


async def test_a_worker_that_is_drained_while_it_asks_does_not_stay() -> None:
    async with leaver(stop_at=ASKED) as made:
        made.taker_stays = False
        asker = made.leave()
        await made.reached.wait()
        made.drains = True
        made.go_on.set()
        with pytest.raises(PreconditionError, match="none of the workers"):
            await asker
        assert not made.departure.stays


@PHASES
async def test_one_that_is_cancelled_leaves_if_it_has_begun_to_whenever_that_is(phase: str) -> None:
    for num_steps in range(NUM_STEPS):
        async with leaver(stop_at=phase) as made:
            asker = made.leave()
            await made.reached.wait()
            made.go_on.set()
            for _ in range(num_steps):
                await asyncio.sleep(0)
            await made.departure.close()
            await made.check(has_left=made.drains)
            assert made.drains or phase == ASKED
            await ends(asker)


async def test_one_that_is_cancelled_before_anybody_answers_stays() -> None:
    async with leaver(stop_at=ASKED) as made:
        for num_steps in range(1, NUM_STEPS):
            asker = made.leave()
            for _ in range(num_steps):
                await asyncio.sleep(0)
            await made.departure.close()
            await made.check(has_left=False)
            await ends(asker)


async def ends(asker: asyncio.Task[worker_pb2.DrainResponse]) -> None:
    """Who gave the order hears of it, one way or the other."""
    await asyncio.wait((asker,), timeout=10)
    assert asker.done()
    assert asker.exception() is None or isinstance(asker.exception(), UnavailableError)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def says(worker: WorkerHost) -> int:
    """What a worker answers to who asks whether it stays."""
    async with grpc.aio.insecure_channel(worker.address) as channel:
        request = health_pb2.HealthCheckRequest(service=stays_service(worker.incarnation))
        return int((await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)).status)


async def test_a_worker_whose_asking_broke_says_that_it_stays_and_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("injected")

    states = health_pb2.HealthCheckResponse
    configs = [digest_config(), digest_config("worker-1")]
    async with running_workers(configs, MemoryStores().connect) as (host, other), client_of(host) as client:
        assert await says(host) == states.SERVING
        with monkeypatch.context() as patched:
            patched.setattr(rpc_departure, "peer_channel", broken)
            with pytest.raises(grpc.aio.AioRpcError):
                await client.stub.Drain(drain_order(host, other), timeout=30)
        assert await says(host) == states.SERVING
        assert len((await client.execute(digest_domain(), range(40), max_tokens=2)).tokens[0]) == 2
        await client.stub.Drain(drain_order(host, other), timeout=30)
        await asyncio.wait_for(host.wait_ended(), 20)
        assert host.has_retired


async def test_a_worker_that_drains_otherwise_says_that_it_does_not_stay() -> None:
    async with running_workers([digest_config()], MemoryStores().connect) as (host,), client_of(host) as client:
        draining = asyncio.create_task(host.drain(10.0))
        for _ in range(2):
            await asyncio.sleep(0)
        draining.cancel()
        await asyncio.wait((draining,))
        assert await says(host) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="leaving"):
            await client.execute(digest_domain(), range(40), max_tokens=2)


async def test_a_worker_that_ends_while_it_asks_has_not_left_by_order() -> None:
    async with leaver(stop_at=ASKED) as silent, running_workers([digest_config()], MemoryStores().connect) as (host,):
        peer = worker_pb2.DrainPeer(address=silent.address, incarnation=TAKER)
        order = drain_order(host)
        order.peers.append(peer)
        async with client_of(host) as client:
            asked = asyncio.ensure_future(client.stub.Drain(order, timeout=30))
            await silent.reached.wait()
            await host.stop()
            with pytest.raises(grpc.aio.AioRpcError, match="ended before"):
                await asked
        assert not host.has_retired
