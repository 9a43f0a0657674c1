"""A worker's life beside real Redis: index and lease, stores that go and come back, restarts, death of the engine."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stemcache.worker.v1 import worker_pb2

from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.index import Incarnation
from cache_store.redis_index import RedisIndexReader
from cache_store.redis_registry import RedisRegistryReader
from cache_store.redis_session import RedisSession
from cache_store.registry import SupersededError
from cache_store.tokens import pack
from services.cluster.valkey import EmbeddedValkey, find_binary
from tests.support.worker_host import client_of, digest_config, digest_domain, running_workers
from worker.build import connect_stores
from worker.engine import Engine
from worker.host import SERVICE

PROMPT = list(range(1, 101))
NUM_BLOCKS = len(PROMPT) // 16
ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")


class RouterView:
    """What a router sees."""

    def __init__(self, url: str) -> None:
        self._session = RedisSession(url)
        self._index = RedisIndexReader(self._session, deadline_s=2.0)
        self._registry = RedisRegistryReader(self._session)

    async def close(self) -> None:
        await self._session.close()

    async def num_found(self, domain: Domain, incarnation: Incarnation) -> int:
        digests = b"".join(chain(domain, pack(PROMPT), 16))
        return (await self._index.lookup(domain.tag, digests, [incarnation]))[incarnation]

    async def incarnations(self) -> list[Incarnation]:
        return [record.incarnation for record in await self._registry.workers()]


async def ending(call: grpc.aio.UnaryStreamCall[worker_pb2.ExecuteRequest, worker_pb2.ExecuteResponse]) -> object:
    """Status of a call, after everything that came before it was read."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


@asynccontextmanager
async def router_view(url: str) -> AsyncIterator[RouterView]:
    view = RouterView(url)
    yield view
    await view.close()


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s, "did not come true"
        await asyncio.sleep(0.02)


class RestartableServer:
    """A Valkey without persistence that keeps its socket over restarts."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "valkey.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}?db=0"

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self._socket), "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen([str(find_binary()), *options], stdout=subprocess.DEVNULL)
        while not self._socket.exists():
            assert self._process.poll() is None
            time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._socket.unlink(missing_ok=True)


@pytest.fixture
def server() -> Iterator[RestartableServer]:
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        server = RestartableServer(Path(folder))
        yield server
        server.kill()


async def test_what_a_worker_holds_is_in_the_index_under_its_tenant_only(valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-index", valkey.urls.worker)
    async with (
        running_workers([config], connect_stores) as [host],
        client_of(host) as client,
        router_view(valkey.urls.router) as view,
    ):
        await client.execute(ACME, PROMPT)

        async def all_found() -> bool:
            return await view.num_found(ACME, host.incarnation) == NUM_BLOCKS

        await until(all_found)
        assert await view.num_found(GLOBEX, host.incarnation) == 0
        assert host.incarnation in await view.incarnations()
        incarnation = host.incarnation
        await host.stop()
        assert await view.num_found(ACME, incarnation) == 0
        assert incarnation not in await view.incarnations()


async def test_redis_killed_and_restarted_empty_is_filled_again(server: RestartableServer) -> None:
    server.start()
    config = digest_config("worker-redis", server.url)
    async with (
        running_workers([config], connect_stores) as [host],
        client_of(host) as client,
        router_view(server.url) as view,
    ):

        async def all_found() -> bool:
            return await view.num_found(ACME, host.incarnation) == NUM_BLOCKS

        async def is_listed() -> bool:
            return await view.incarnations() == [host.incarnation]

        await client.execute(ACME, PROMPT)
        await until(all_found)
        server.kill()
        while_away = await client.execute(ACME, PROMPT)
        assert while_away.cached_tokens > 0, "the worker serves and hits without Redis"
        server.start()
        await until(is_listed)
        await until(all_found)


async def test_a_worker_starts_and_serves_before_redis_does(server: RestartableServer) -> None:
    config = digest_config("worker-early", server.url)
    async with running_workers([config], connect_stores) as [host], client_of(host) as client:
        await client.execute(ACME, PROMPT)
        server.start()
        async with router_view(server.url) as view:

            async def all_found() -> bool:
                return await view.num_found(ACME, host.incarnation) == NUM_BLOCKS

            await until(all_found)


async def test_a_restart_under_the_same_id_is_another_incarnation_and_fences_the_old_one(
    valkey: EmbeddedValkey,
) -> None:
    config = digest_config("worker-same", valkey.urls.worker)
    async with router_view(valkey.urls.router) as view, running_workers([config], connect_stores) as [old]:
        old_client = client_of(old)
        await old_client.execute(ACME, PROMPT)

        async def old_is_listed() -> bool:
            return old.incarnation in await view.incarnations()

        await until(old_is_listed)
        async with running_workers([config], connect_stores) as [new], client_of(new) as client:
            assert new.incarnation != old.incarnation
            await asyncio.wait_for(old.wait_ended(), 30)
            assert isinstance(old.failure, SupersededError)
            listed = await view.incarnations()
            assert new.incarnation in listed
            assert old.incarnation not in listed
            assert await view.num_found(ACME, new.incarnation) == 0
            stale = client.message(ACME, PROMPT)
            stale.request_token = client.token(ACME, incarnation=old.incarnation)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await client.run(stale)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert (await client.execute(ACME, PROMPT)).cached_tokens == 0
        await old_client.channel.close()


async def test_when_the_engine_dies_open_calls_fail_readiness_goes_and_the_worker_ends(valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-dies", valkey.urls.worker, digest_step_s=0.01)
    async with (
        running_workers([config], connect_stores) as [host],
        client_of(host) as client,
        router_view(valkey.urls.router) as view,
    ):
        health = health_pb2_grpc.HealthStub(client.channel)
        ready = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
        assert ready.status == health_pb2.HealthCheckResponse.SERVING
        call = client.call(client.message(ACME, PROMPT, max_tokens=4_000))
        await call.read()
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=30)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING

        def end_thread(_: Engine) -> None:
            raise SystemExit("broken by a test")

        with pytest.raises(Exception, match="engine failed"):
            await host.thread.call(end_thread, 10)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await ending(call) is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(host.wait_ended(), 30)
        assert isinstance(host.failure, SystemExit)
        assert not host.healthy
        assert host.incarnation not in await view.incarnations()


async def test_open_calls_of_a_stopped_worker_fail_with_unavailable(valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-stops", valkey.urls.worker, digest_step_s=0.01)
    async with running_workers([config], connect_stores) as [host], client_of(host) as client:
        call = client.call(client.message(ACME, PROMPT, max_tokens=4_000))
        await call.read()
        await host.stop()
        assert await ending(call) is grpc.StatusCode.UNAVAILABLE
        assert host.failure is None


async def test_a_taken_port_is_refused_by_name(valkey: EmbeddedValkey) -> None:
    async with running_workers([digest_config("worker-a", valkey.urls.worker)], connect_stores) as [host]:
        port = int(host.address.rpartition(":")[2])
        taken = digest_config("worker-b", valkey.urls.worker, listen_port=port)
        with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port}"):
            async with running_workers([taken], connect_stores):
                pass
