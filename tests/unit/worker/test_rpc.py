"""The gRPC edge over a scripted engine: what needs an engine that does as it is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.clock import SystemClock
from cache_store.domain import AdapterDigest, FormatDigest
from cache_store.errors import UnavailableError
from cache_store.fence import Fence, FenceNotice
from cache_store.fence_document import sign_notice
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION
from cache_store.scrubs import Dropped
from cache_store.usage import CachedTokens
from tests.support.fences import make_fence
from tests.support.scripted_engine import ScriptedEngine
from tests.support.worker_host import CLUSTER_KEY, WorkerClient, digest_domain
from worker.digest_runner import digest_model
from worker.engine_thread import EngineThread
from worker.fences import Fences
from worker.requests import CacheMode, EngineOutput, Failed, Finish, Finished, Generated, RequestKey, Started
from worker.rpc import WorkerServicer

ME = Incarnation("1" * 32)
ACME, GLOBEX = digest_domain(), digest_domain("globex")
KEY = RequestKey(1)
"""Of the first request."""


async def _stay(order: worker_pb2.DrainRequest) -> worker_pb2.DrainResponse:
    raise AssertionError(f"told to leave: {order}")


class NoAdapters:
    def adapter_of(self, kv_format: FormatDigest) -> AdapterDigest | None:
        return None


@asynccontextmanager
async def serving(engine: ScriptedEngine, write_timeout_s: float = 60.0) -> AsyncIterator[tuple[WorkerClient, Any]]:
    thread = EngineThread(engine, lambda _: None, SystemClock())
    thread.start()
    servicer = WorkerServicer(
        thread, digest_model(), ME, CLUSTER_KEY, SystemClock(), NoAdapters(), _stay, write_timeout_s
    )
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with WorkerClient(f"127.0.0.1:{port}", ME) as client:
        yield client, servicer
    await thread.stop(5)
    await server.stop(1)


async def purge(client: WorkerClient, fence: Fence) -> worker_pb2.PurgeResponse:
    notice = sign_notice(CLUSTER_KEY, FenceNotice(fence.tenant, fence, 2))
    message = worker_pb2.PurgeRequest(protocol_version=PROTOCOL_VERSION, fence=notice)
    response: worker_pb2.PurgeResponse = await client.stub.Purge(message, timeout=20)
    return response


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true"
        await asyncio.sleep(0.01)


class StepAfterPurge(ScriptedEngine):
    """Begins a step behind a purge, and does not end it before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def purge(self, fences: Fences) -> Dropped:
        self.script.append(self._wait)
        return super().purge(fences)

    def _wait(self) -> tuple[EngineOutput, ...]:
        assert self.go_on.wait(20)
        return ()


async def test_a_purge_is_acknowledged_with_what_the_engine_dropped_before_its_next_step() -> None:
    engine = StepAfterPurge()
    async with serving(engine) as (client, _):
        call = client.call(client.message(ACME, [1, 2, 3, 4]))
        await until(lambda: bool(engine.submitted))
        response = await purge(client, make_fence("acme", 2))
        counts = response.purged_blocks
        assert (counts.device_blocks, counts.host_blocks, counts.disk_blocks, response.held_blocks) == (3, 2, 1, 1)
        assert (response.incarnation, response.counts_pending) == (ME, False)
        engine.go_on.set()
        call.cancel()


async def test_a_purge_does_not_wait_for_a_long_step_and_is_in_force_at_once() -> None:
    engine = ScriptedEngine()
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> tuple[EngineOutput, ...]:
        begun.set()
        assert go_on.wait(20)
        return (Failed(KEY, UnavailableError("why", 2.0)),)

    script(engine, wait)
    fence = make_fence("acme", 2)
    async with serving(engine) as (client, _):
        before = client.call(client.message(ACME, [1, 2, 3, 4]))
        await until(begun.is_set)
        response = await purge(client, fence)
        assert (response.incarnation, response.counts_pending) == (ME, True)
        assert response.purged_blocks.device_blocks == 0
        after = [client.call(client.message(domain, [1, 2, 3, 4])) for domain in (ACME, GLOBEX)]
        assert engine.purges == []
        go_on.set()
        await until(lambda: len(engine.submitted) == 3)
        assert engine.purges == [{fence.tenant: fence}]
        modes = {request.domain.tenant: request.cache_mode for request in engine.submitted[1:]}
        assert modes == {ACME.tenant: CacheMode.PURGED, GLOBEX.tenant: CacheMode.READ_WRITE}
        for call in (before, *after):
            call.cancel()


def script(engine: ScriptedEngine, *steps: Callable[[], tuple[EngineOutput, ...]]) -> None:
    engine.script.extend(steps)


async def test_what_was_made_before_a_failure_arrives_and_its_status_follows() -> None:
    engine = ScriptedEngine()
    script(
        engine,
        lambda: (Started(KEY, CachedTokens(3)), Generated(KEY, 0, (5, 6), None)),
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
    script(engine, lambda: (Started(KEY, CachedTokens(0)), Generated(KEY, 0, (5,), Finish.STOP), end))
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

    script(engine, lambda: (Started(KEY, CachedTokens(0)),), endless)
    async with serving(engine, write_timeout_s=0.3) as (client, servicer):
        call = client.call(client.message(ACME, [1, 2, 3, 4]), timeout_s=60)
        await call.read()
        await asyncio.wait_for(servicer.wait_idle(), 30)
        await client.channel.close()
    assert engine.cancelled == [KEY]


async def test_a_fault_of_the_edge_is_an_internal_error_without_words() -> None:
    engine = ScriptedEngine()
    script(engine, lambda: (Started(KEY, CachedTokens(-1)),))  # no such number of tokens can be written
    async with serving(engine) as (client, servicer):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.execute(ACME, [1, 2, 3, 4])
        assert raised.value.code() is grpc.StatusCode.INTERNAL
        assert "internal error" in raised.value.details()
        await asyncio.wait_for(servicer.wait_idle(), 10)
    assert engine.cancelled == [KEY]
