"""What every store of limits does, whatever keeps it: memory, Valkey or Redis."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from cache_store.clock import ManualClock
from cache_store.domain import TenantId
from cache_store.limit_store import Exchange, LimitStore, PlaceAsk, PlaceGrant, RouterId, TokenAsk, TokenGrant
from cache_store.memory_limits import MemoryLimitStore
from cache_store.redis_limits import RedisLimitStore
from cache_store.token_bucket import BURST_S
from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import server_named

A, B, C = (RouterId(name) for name in "abc")
ACME, GLOBEX = TenantId("acme"), TenantId("globex")
LEASE_S = 1.0
NUMBERS = itertools.count(1)
RATE = 10
"""Tokens per second of tests in which the passing of a little time must not matter much."""
BURST = RATE * BURST_S


@dataclass(frozen=True)
class Bench:
    store: LimitStore
    wipe: Callable[[], None]
    let_pass: Callable[[float], Awaitable[None]]
    key_names: Callable[[], list[str]]

    async def places(
        self, router: RouterId, wanted: int, *, held: int = 0, limit: int = 8, spare: int = 0
    ) -> PlaceGrant:
        ask = PlaceAsk(ACME, next(NUMBERS), limit, held, wanted - spare, wanted)
        return (await self.store.exchange(router, [ask], [])).places[0]

    async def tokens(
        self, *costs: int, spent: int = 0, spare: int = 0, rate: int = RATE, tenant: TenantId = ACME
    ) -> TokenGrant:
        return (await self.store.exchange(A, [], [TokenAsk(tenant, rate, spent, costs, spare)])).tokens[0]


@pytest.fixture(params=["memory", "valkey", "redis"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        clock = ManualClock()
        memory = MemoryLimitStore(clock, LEASE_S)

        async def advance(seconds: float) -> None:
            clock.advance(seconds)

        yield Bench(memory, memory.wipe, advance, list)
        return
    server = server_named(request, request.param)
    async with server.session(RedisRole.ROUTER) as session:
        store = RedisLimitStore(session, LEASE_S, deadline_s=5.0)
        yield Bench(store, server.wipe, asyncio.sleep, server.key_names)


async def test_routers_together_never_have_more_than_the_limit(bench: Bench) -> None:
    assert await bench.places(A, 5) == PlaceGrant(5, others_idle=0, others_want=False)
    assert await bench.places(B, 5) == PlaceGrant(3, others_idle=5, others_want=False)
    assert await bench.places(C, 1) == PlaceGrant(0, others_idle=8, others_want=True)


async def test_what_is_given_back_is_free_for_others(bench: Bench) -> None:
    await bench.places(A, 8, held=3)
    assert (await bench.places(B, 2)).granted == 0
    assert await bench.places(A, 3, held=3) == PlaceGrant(3, others_idle=0, others_want=True)
    assert await bench.places(B, 2) == PlaceGrant(2, others_idle=0, others_want=False)
    assert (await bench.places(A, 0)).granted == 0
    assert (await bench.places(B, 8, held=2)).granted == 8


async def test_places_in_use_are_never_taken_even_where_the_limit_is_lowered(bench: Bench) -> None:
    await bench.places(A, 6, held=6)
    assert (await bench.places(A, 7, held=6, limit=2)).granted == 6
    assert (await bench.places(B, 1, limit=2)).granted == 0
    assert (await bench.places(A, 1, held=1, limit=2)).granted == 1
    assert (await bench.places(B, 1, limit=2)).granted == 1


async def test_places_of_a_router_that_is_gone_come_back_and_those_of_one_that_renews_stay(bench: Bench) -> None:
    await bench.places(A, 4, held=4)
    await bench.places(B, 4, held=4)
    await bench.let_pass(0.6 * LEASE_S)
    await bench.places(B, 4, held=4)
    assert (await bench.places(C, 8)).granted == 0
    await bench.let_pass(0.6 * LEASE_S)
    assert (await bench.places(C, 8)).granted == 4


async def test_who_was_slow_is_given_what_it_holds_and_no_more(bench: Bench) -> None:
    await bench.places(A, 8, held=2)
    await bench.let_pass(1.2 * LEASE_S)
    await bench.places(B, 8, held=8)
    assert (await bench.places(A, 8, held=2)).granted == 2


async def test_who_lacks_only_what_is_to_spare_asks_nobody_to_give_back(bench: Bench) -> None:
    await bench.places(A, 7, held=2)
    await bench.places(B, 3, held=0, spare=2)
    assert not (await bench.places(A, 7, held=2)).others_want
    await bench.places(B, 3, held=0, spare=1)
    assert (await bench.places(A, 7, held=2)).others_want


async def test_an_ask_that_was_overtaken_by_a_later_one_changes_nothing(bench: Bench) -> None:
    early, late = PlaceAsk(ACME, 1, 8, 0, 1, 1), PlaceAsk(ACME, 2, 8, 5, 5, 5)
    await bench.store.exchange(A, [late], [])
    assert (await bench.store.exchange(A, [early], [])).places[0].granted == 5
    assert (await bench.places(B, 8)).granted == 3
    again = PlaceAsk(ACME, 3, 8, 0, 1, 1)
    assert (await bench.store.exchange(A, [again], [])).places[0].granted == 1


async def test_tenants_have_places_of_their_own(bench: Bench) -> None:
    await bench.places(A, 8, held=8)
    asks = [PlaceAsk(ACME, 1, 8, 0, 1, 1), PlaceAsk(GLOBEX, 1, 8, 0, 8, 8)]
    exchange = await bench.store.exchange(B, asks, [])
    assert [grant.granted for grant in exchange.places] == [0, 8]
    assert exchange.places[1] == PlaceGrant(8, others_idle=0, others_want=False)


async def test_requests_are_admitted_until_the_bucket_is_empty(bench: Bench) -> None:
    first = await bench.tokens(3, 3, 3)
    assert first.num_admitted == 2
    assert -3 < first.level < -1
    assert (await bench.tokens(1)).num_admitted == 0


async def test_a_request_larger_than_the_bucket_is_admitted_and_paid_back(bench: Bench) -> None:
    grant = await bench.tokens(1_000_000, rate=1_000_000)
    assert grant.num_admitted == 1
    assert -600_001 < grant.level < -550_000
    await bench.let_pass(0.7)
    assert (await bench.tokens(5, rate=1_000_000)).num_admitted == 1


async def test_spare_tokens_are_taken_and_given_back(bench: Bench) -> None:
    assert (await bench.tokens(spare=3)).spare == 3
    assert (await bench.tokens(spare=100)).spare in (1, 2)
    assert (await bench.tokens(spent=-2, spare=100)).spare in (2, 3)
    assert (await bench.tokens(1, 10_000, spare=5)).spare == 0


async def test_no_more_than_a_full_bucket_is_kept(bench: Bench) -> None:
    assert (await bench.tokens(spent=-1_000, spare=1_000)).spare == int(BURST)


async def test_what_was_spent_is_paid_before_anything_is_admitted(bench: Bench) -> None:
    grant = await bench.tokens(1, spent=50, spare=5)
    assert (grant.num_admitted, grant.spare) == (0, 0)
    assert -46.5 < grant.level < -44
    assert (await bench.tokens(1, tenant=GLOBEX)).num_admitted == 1


async def test_routers_are_counted_while_they_ask(bench: Bench) -> None:
    async def greet(router: RouterId) -> Exchange:
        return await bench.store.exchange(router, [], [])

    assert [(await greet(router)).store.num_routers for router in (A, B, A)] == [1, 2, 2]
    await bench.let_pass(0.6 * LEASE_S)
    assert (await greet(B)).store.num_routers == 2
    await bench.let_pass(0.6 * LEASE_S)
    assert (await greet(B)).store.num_routers == 1


async def test_a_store_that_lost_its_data_is_another_one(bench: Bench) -> None:
    async def birth() -> str:
        return (await bench.store.exchange(A, [], [])).store.birth

    first = await birth()
    assert await birth() == first
    bench.wipe()
    assert await birth() != first


async def test_nothing_is_left_of_who_asks_no_more(bench: Bench) -> None:
    await bench.places(A, 4, held=4)
    await bench.tokens(1)
    await bench.let_pass(2.2 * LEASE_S)
    assert bench.key_names() == []
