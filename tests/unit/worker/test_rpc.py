"""The gRPC edge over a scripted engine: what needs an engine that does as it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from stemcache.worker.v1 import worker_pb2_grpc

from cache_store.clock import SystemClock
from cache_store.errors import UnavailableError
from cache_store.index import Incarnation
from tests.support.scripted_engine import ScriptedEngine
from tests.support.worker_host import CLUSTER_KEY, WorkerClient, digest_domain
from worker.digest_runner import digest_model
from worker.engine_thread import EngineThread
from worker.requests import EngineOutput, Failed, Finish, Finished, Generated, RequestKey, Started
from worker.rpc import WorkerServicer

ME = Incarnation("1" * 32)
ACME = digest_domain()
KEY = RequestKey(1)
"""Of the first request."""


@asynccontextmanager
async def serving(engine: ScriptedEngine, write_timeout_s: float = 60.0) -> AsyncIterator[tuple[WorkerClient, Any]]:
    thread = EngineThread(engine, lambda _: None, SystemClock())
    thread.start()
    servicer = WorkerServicer(thread, digest_model(), ME, CLUSTER_KEY, SystemClock(), write_timeout_s)
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with WorkerClient(f"127.0.0.1:{port}", ME) as client:
        yield client, servicer
    await thread.stop(5)
    await server.stop(1)


def script(engine: ScriptedEngine, *steps: Callable[[], tuple[EngineOutput, ...]]) -> None:
    engine.script.extend(steps)


async def test_what_was_made_before_a_failure_arrives_and_its_status_follows() -> None:
    engine = ScriptedEngine()
    script(
        engine,
        lambda: (Started(KEY, 3), Generated(KEY, 0, (5, 6), None)),
        lambda: (Failed(KEY, UnavailableError("why", 2.0)),),
    )
    async with serving(engine) as (client, _):
        call = client.call(client.message(ACME, [1, 2, 3, 4]))
        assert (await call.read()).started.cached_tokens == 3
        assert (await call.read()).tokens.packed == b"\5\0\0\0\6\0\0\0"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert raised.value.details() == "why"


async def test_times_and_preemptions_are_passed_on() -> None:
    engine = ScriptedEngine()
    end = Finished(KEY, 0.25, 0.5, 1.125, 2, preempted_s=0.375, recompute_s=0.125, recomputed_tokens=7, swap_s=0.75)
    script(engine, lambda: (Started(KEY, 0), Generated(KEY, 0, (5,), Finish.STOP), end))
    async with serving(engine) as (client, _):
        finished = (await client.execute(ACME, [1, 2, 3, 4])).finished
    assert finished is not None
    assert finished.queue_duration.ToMilliseconds() == 250
    assert finished.prefill_duration.ToMilliseconds() == 500
    assert finished.decode_duration.ToMilliseconds() == 1_125
    assert finished.preemptions == 2
    assert finished.preempted_duration.ToMilliseconds() == 375
    assert finished.recompute_duration.ToMilliseconds() == 125
    assert finished.swap_duration.ToMilliseconds() == 750
    assert finished.recomputed_tokens == 7


async def test_a_caller_that_reads_nothing_is_let_go() -> None:
    """What it was sent fills the transport; then its call ends and everything of it is given back."""
    engine = ScriptedEngine()
    many = tuple(range(20_000))

    def endless() -> tuple[EngineOutput, ...]:
        if not engine.cancelled:
            engine.script.append(endless)
        time.sleep(0.002)
        return (Generated(KEY, 0, many, None),)

    script(engine, lambda: (Started(KEY, 0),), endless)
    async with serving(engine, write_timeout_s=0.3) as (client, servicer):
        call = client.call(client.message(ACME, [1, 2, 3, 4]), timeout_s=60)
        await call.read()
        await asyncio.wait_for(servicer.wait_idle(), 30)
        await client.channel.close()
    assert engine.cancelled == [KEY]


async def test_a_fault_of_the_edge_is_an_internal_error_without_words() -> None:
    engine = ScriptedEngine()
    script(engine, lambda: (Started(KEY, -1),))  # no such number of tokens can be written
    async with serving(engine) as (client, servicer):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.execute(ACME, [1, 2, 3, 4])
        assert raised.value.code() is grpc.StatusCode.INTERNAL
        assert "internal error" in raised.value.details()
        await asyncio.wait_for(servicer.wait_idle(), 10)
    assert engine.cancelled == [KEY]
