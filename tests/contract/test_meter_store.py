"""What every store of usage does, whatever keeps it: memory, Valkey or Redis."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from cache_store.domain import TenantId
from cache_store.memory_meter import MemoryMeterNames, MemoryMeterStore
from cache_store.meter_batches import MeterBatch, MeterLine
from cache_store.meter_store import MeterNames, MeterSpace, MeterStore, MeterWriterId
from cache_store.metered import RETAINED_HOURS, Metered, hour_of
from cache_store.redis_keys import meter_hour_key, meter_name_key, meter_writers_key
from cache_store.redis_meter import RedisMeterNames, RedisMeterStore
from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer, server_named

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
A, B = MeterWriterId("a"), MeterWriterId("b")
HOUR = hour_of(time.time())


@dataclass(frozen=True)
class Bench:
    store: MeterStore

    async def totals(self, tenant: TenantId | None = None) -> dict[tuple[int, TenantId], Counter[Metered]]:
        lines = await self.store.read(HOUR - 50, HOUR + 1, tenant)
        return {(line.hour, line.tenant): Counter(line.counts) for line in lines}


@pytest.fixture(params=["memory", "valkey", "redis"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        yield Bench(MemoryMeterStore())
        return
    server = server_named(request, request.param)
    async with server.session(RedisRole.OPERATOR) as session:
        yield Bench(RedisMeterStore(session, MeterSpace.REQUESTS, deadline_s=5.0))


def batch(number: int, *lines: MeterLine, oldest: int = 1) -> MeterBatch:
    return MeterBatch(number, oldest, lines)


def line(tokens: int, tenant: TenantId = ACME, hour: int = HOUR) -> MeterLine:
    return MeterLine(hour, tenant, {Metered.PROMPT: tokens, Metered.COMPLETED: 1})


async def test_counts_of_all_writers_add_up_by_tenant_and_hour(bench: Bench) -> None:
    assert await bench.store.add(A, batch(1, line(10), line(5, GLOBEX), line(1, hour=HOUR - 49))) == 1
    assert await bench.store.add(B, batch(1, line(20))) == 1
    assert await bench.totals() == {
        (HOUR - 49, ACME): Counter({Metered.PROMPT: 1, Metered.COMPLETED: 1}),
        (HOUR, ACME): Counter({Metered.PROMPT: 30, Metered.COMPLETED: 2}),
        (HOUR, GLOBEX): Counter({Metered.PROMPT: 5, Metered.COMPLETED: 1}),
    }


async def test_a_reader_of_one_tenant_gets_no_other(bench: Bench) -> None:
    await bench.store.add(A, batch(1, line(10), line(5, GLOBEX)))
    assert set(await bench.totals(GLOBEX)) == {(HOUR, GLOBEX)}
    assert await bench.totals(TenantId("nobody")) == {}


async def test_a_batch_that_is_written_again_counts_once(bench: Bench) -> None:
    await bench.store.add(A, batch(1, line(10)))
    assert await bench.store.add(A, batch(1, line(10))) == 1
    await bench.store.add(A, batch(2, line(1)))
    assert await bench.store.add(A, batch(1, line(10))) == 2
    assert (await bench.totals())[HOUR, ACME][Metered.PROMPT] == 11


async def test_a_batch_before_which_others_are_missing_is_not_taken_while_they_can_come(bench: Bench) -> None:
    assert await bench.store.add(A, batch(3, line(100))) == 0
    assert await bench.totals() == {}
    assert await bench.store.add(A, batch(3, line(100), oldest=3)) == 3
    assert (await bench.totals())[HOUR, ACME][Metered.PROMPT] == 100


async def test_large_numbers_stay_exact(bench: Bench) -> None:
    large = 2**52
    await bench.store.add(A, batch(1, MeterLine(HOUR, ACME, {Metered.DEVICE_BLOCK_MS: large})))
    await bench.store.add(A, batch(2, MeterLine(HOUR, ACME, {Metered.DEVICE_BLOCK_MS: large - 1})))
    assert (await bench.totals())[HOUR, ACME][Metered.DEVICE_BLOCK_MS] == 2 * large - 1


async def test_hours_expire_and_writers_that_are_gone_are_forgotten(redis_server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(redis_server.session(RedisRole.OPERATOR))
        store = RedisMeterStore(session, MeterSpace.REQUESTS, deadline_s=5.0)
        writers = meter_writers_key(MeterSpace.REQUESTS)
        gone = HOUR - RETAINED_HOURS - 2
        await session.call(("HSET", writers, "gone", f"7 {gone}", "odd", "what"), 5.0)
        for number in range(1, 6):
            await store.add(A, batch(number, line(1)))
        found = await session.call(("HGETALL", writers), 5.0)
        assert isinstance(found, list)
        assert found[::2] == [b"a"]
        expires_s = await session.call(("EXPIRETIME", meter_hour_key(MeterSpace.REQUESTS, HOUR)), 5.0)
        assert isinstance(expires_s, int)
        assert hour_of(expires_s) - HOUR >= RETAINED_HOURS


async def test_workers_write_of_blocks_and_can_neither_read_nor_write_of_requests(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as worker, redis_server.session(RedisRole.ROUTER) as router:
        own = RedisMeterStore(worker, MeterSpace.BLOCKS, deadline_s=5.0)
        assert await own.add(A, batch(1, line(1))) == 1
        bills = RedisMeterStore(worker, MeterSpace.REQUESTS, deadline_s=5.0)
        with pytest.raises(Exception, match=r"(?i)perm"):
            await bills.add(A, batch(1, line(1)))
        with pytest.raises(Exception, match=r"(?i)perm"):
            await bills.read(HOUR, HOUR + 1, ACME)
        assert await RedisMeterStore(router, MeterSpace.BLOCKS, deadline_s=5.0).read(HOUR, HOUR + 1, ACME)


async def names_are_kept(names: MeterNames) -> None:
    await names.keep(ACME, "acme")
    await names.keep(ACME, "acme, later")
    assert await names.of([GLOBEX, ACME]) == {ACME: "acme, later"}
    assert await names.of([]) == {}


async def test_names_are_kept_in_memory() -> None:
    await names_are_kept(MemoryMeterNames())


async def test_names_are_kept_in_redis_as_long_as_hours_are(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.OPERATOR) as session:
        await names_are_kept(RedisMeterNames(session, deadline_s=5.0))
        expires_s = await session.call(("EXPIRETIME", meter_name_key(ACME)), 5.0)
        assert isinstance(expires_s, int)
        assert hour_of(expires_s) - HOUR >= RETAINED_HOURS
