"""What dead workers left behind is removed, what live ones hold stays."""

from __future__ import annotations

import redis

from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation
from cache_store.redis_index import RedisIndexReader, RedisIndexWriter
from cache_store.redis_keys import CURRENT_KEY, lease_key
from cache_store.redis_registry import RedisRegistryReader, RedisRegistryWriter
from cache_store.redis_sweep import REMEMBER_WORKERS_S, sweep_dead
from cache_store.registry import Renewal
from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer
from tests.support.worker_records import worker_record

ACME = DomainTag(b"A" * 16)
GLOBEX = DomainTag(b"G" * 16)
BLOCKS = bytes(range(64))
EVENTS = [BlockEvent(ACME, 1, BlockChange.STORED, BLOCKS), BlockEvent(GLOBEX, 2, BlockChange.STORED, BLOCKS)]


def incarnation(number: int) -> Incarnation:
    return Incarnation(f"{number:032x}")


async def test_dead_incarnations_go_and_live_ones_stay(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.ROUTER) as reading, redis_server.session(RedisRole.WORKER) as session:
        index, registry = RedisIndexWriter(session), RedisRegistryWriter(session)
        for number in range(6):
            await index.apply(incarnation(number), EVENTS)
        live = worker_record("w0", incarnation=incarnation(3))
        await registry.renew(live)
        assert await sweep_dead(session) == 5
        assert await sweep_dead(session) == 0
        dead = [key for key in redis_server.key_names() for number in (0, 1, 2, 4, 5) if incarnation(number) in key]
        assert not dead
        found = await RedisIndexReader(reading, 5.0).lookup(GLOBEX, BLOCKS, [live.incarnation])
        assert found == {live.incarnation: 4}


async def test_one_sweep_is_bounded_and_the_next_goes_on(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        index = RedisIndexWriter(session)
        for number in range(7):
            await index.apply(incarnation(number), EVENTS)
        assert [await sweep_dead(session, limit=3) for _ in range(4)] == [3, 3, 1, 0]


async def test_a_swept_worker_that_only_paused_is_told_to_replace(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        index, registry = RedisIndexWriter(session), RedisRegistryWriter(session)
        record = worker_record("w0", incarnation=incarnation(1))
        await registry.renew(record)
        await index.apply(record.incarnation, EVENTS)
        redis_server.remove(lease_key(record.incarnation))
        assert await sweep_dead(session) == 1
        assert await registry.renew(record) is Renewal.NEW


async def test_a_worker_long_gone_is_forgotten_and_others_are_not(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session, redis_server.session(RedisRole.ROUTER) as reading:
        registry = RedisRegistryWriter(session)
        for name in ("gone", "justgone", "live"):
            await registry.renew(worker_record(name, incarnation=name))
        with redis.Redis.from_url(redis_server.urls.operator, decode_responses=True) as operator:
            for name in ("gone", "live"):
                order = int(operator.hget(CURRENT_KEY, name).split()[0])
                operator.hset(CURRENT_KEY, name, f"{order - (REMEMBER_WORKERS_S + 1) * 1_000_000} {name}")
            for name in ("gone", "justgone"):
                operator.unlink(lease_key(Incarnation(name)))
            await sweep_dead(session)
            assert set(operator.hkeys(CURRENT_KEY)) == {"justgone", "live"}
        [record] = await RedisRegistryReader(reading).workers()
        assert record.worker_id == "live"


async def test_nothing_to_sweep_is_no_error(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        assert await sweep_dead(session) == 0
