"""Routers' limits over a real Valkey: one that dies, a server that restarts empty, one that stands still."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import redis

from cache_store.clock import SystemClock
from cache_store.errors import LimitExceededError
from cache_store.limit_store import PLACES_LEASE_S, PlaceAsk, RouterId
from cache_store.redis_limits import RedisLimitStore
from cache_store.redis_session import RedisSession
from services.cluster.redis_roles import RedisRole
from services.cluster.valkey import EmbeddedValkey
from services.router.cluster_limits import ClusterLimits, TokenNeed
from services.tenants.model import Tenant
from tests.support.limits_bench import limited
from tests.support.redis_servers import RedisServer
from tests.support.router_host import eventually

LIMIT = 8


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A server that a test may stop."""
    with EmbeddedValkey.start(tmp_path) as server:
        yield server


class Router:
    """The limits of one router, run as a router runs them; `kill` is a process that ends without a word."""

    def __init__(self, name: str, url: str) -> None:
        self.session = RedisSession(url)
        self.limits = ClusterLimits(RedisLimitStore(self.session), RouterId(name), SystemClock())
        self.num_held = 0
        self._holding: set[asyncio.Task[None]] = set()
        self._run = asyncio.create_task(self.limits.run())

    def hold(self, tenant: Tenant, num: int) -> None:
        """Requests that run until the router is killed or told to `let_go`, as far as they are admitted."""
        for _ in range(num):
            task = asyncio.create_task(self._hold(tenant))
            self._holding.add(task)
            task.add_done_callback(self._holding.discard)

    async def kill(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self.let_go()
        await self.session.close()

    async def let_go(self) -> None:
        holding = list(self._holding)
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)

    async def _hold(self, tenant: Tenant) -> None:
        try:
            async with self.limits.place(tenant):
                self.num_held += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self.num_held -= 1
        except LimitExceededError:
            pass


@asynccontextmanager
async def routers_at(url: str) -> AsyncIterator[list[Router]]:
    """Three routers."""
    async with AsyncExitStack() as stack:
        routers = [Router(name, url) for name in "abc"]
        for router in routers:
            stack.push_async_callback(router.kill)
        yield routers


def all_of(routers: list[Router]) -> Callable[[], int]:
    return lambda: sum(router.num_held for router in routers)


async def test_the_share_of_a_killed_router_comes_back(own_valkey: EmbeddedValkey) -> None:
    acme = limited("acme", requests_in_flight=LIMIT)
    async with routers_at(own_valkey.urls.router) as routers:
        first, second, third = routers
        first.hold(acme, 6)
        await eventually(lambda: first.num_held == 6)
        await first.kill()
        second.hold(acme, LIMIT)
        await asyncio.sleep(1.2)
        assert second.num_held == 2
        await asyncio.sleep(PLACES_LEASE_S)
        third.hold(acme, LIMIT)
        await eventually(lambda: third.num_held == LIMIT - 2)


async def test_a_server_that_restarts_empty_is_noticed_and_made_good(own_valkey: EmbeddedValkey) -> None:
    acme = limited("acme", requests_in_flight=LIMIT, tokens_per_s=1_000)
    async with routers_at(own_valkey.urls.router) as routers:
        first, second, third = routers
        first.hold(acme, LIMIT)
        await eventually(lambda: first.num_held == LIMIT)
        await asyncio.sleep(0.6)
        _empty(own_valkey)
        own_valkey.restart()
        second.hold(acme, LIMIT)
        third.hold(acme, LIMIT)
        await asyncio.sleep(1.0)
        assert all_of(routers)() <= LIMIT + 2 * (LIMIT // 3)
        await eventually(lambda: not any(router.limits.is_degraded for router in routers))
        for router in routers:
            await router.let_go()
        await asyncio.sleep(0.7)
        third.hold(acme, LIMIT + 1)
        await eventually(lambda: third.num_held == LIMIT)
        second.hold(acme, 1)
        await asyncio.sleep(0.5)
        assert all_of(routers)() == LIMIT


def _empty(server: EmbeddedValkey) -> None:
    with redis.Redis.from_url(server.urls.operator) as client:
        client.unlink(*client.scan_iter("sc:*", count=1000))


async def test_a_server_that_stands_still_is_lived_without(own_valkey: EmbeddedValkey) -> None:
    acme = limited("acme", requests_in_flight=9, tokens_per_s=3_000)
    async with routers_at(own_valkey.urls.router) as routers:
        await asyncio.sleep(0.7)
        os.kill(own_valkey.pid, signal.SIGSTOP)
        try:
            for router in routers:
                router.hold(acme, 9)
            await eventually(lambda: all(router.limits.is_degraded for router in routers))
            await asyncio.sleep(0.5)
            assert [router.num_held for router in routers] == [3, 3, 3]
            async with routers[0].limits.tokens(acme, TokenNeed(100, 10)):
                pass
        finally:
            os.kill(own_valkey.pid, signal.SIGCONT)
        await eventually(lambda: not any(router.limits.is_degraded for router in routers))
        assert all_of(routers)() == 9
        routers[0].hold(acme, 1)
        await asyncio.sleep(0.5)
        assert all_of(routers)() == 9


async def test_a_cancelled_exchange_leaves_no_stale_reply(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.ROUTER) as session:
        store = RedisLimitStore(session, deadline_s=5.0)
        acme = limited("acme").id

        async def ask(number: int, turns: int) -> None:
            router = RouterId(f"router-{number}")
            call = asyncio.create_task(store.exchange(router, [PlaceAsk(acme, 1, 1_000, number, number, number)], []))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            try:
                answer = await call
            except asyncio.CancelledError:
                return
            assert answer.places[0].granted == number

        await asyncio.gather(*(ask(number, number % 30) for number in range(1, 40)))
        answer = await store.exchange(RouterId("last"), [PlaceAsk(acme, 1, 1_000, 7, 7, 7)], [])
        assert answer.places[0].granted == 7
        session.check_invariants()


async def test_what_is_written_is_within_the_limits_own_keys_and_expires(redis_server: RedisServer) -> None:
    acme = limited("acme", requests_in_flight=2, tokens_per_s=100)
    router = Router("a", redis_server.urls.router)
    async with router.limits.place(acme), router.limits.tokens(acme, TokenNeed(10, 1)):
        names = redis_server.key_names()
        assert names == sorted(
            [f"sc:{{limit:{acme.id}}}:{kind}" for kind in ("places", "tokens")]
            + ["sc:{limits}:birth", "sc:{limits}:routers"]
        )
        with redis.Redis.from_url(redis_server.urls.operator) as client:
            assert all(0 < client.pttl(name) <= 2_000 * PLACES_LEASE_S for name in names)
    await router.kill()
