"""The registry in real servers: leases that end by themselves, entries that are none, a store that lost its data."""

from __future__ import annotations

import asyncio

import pytest
import redis

from cache_store.index import Incarnation
from cache_store.redis_keys import CURRENT_KEY, SCHEMA_KEY, lease_key
from cache_store.redis_registry import RedisRegistryReader, RedisRegistryWriter
from cache_store.redis_session import RedisSession
from cache_store.redis_sweep import sweep_dead
from cache_store.registry import LEASE_S, RegistryUnavailableError, Renewal, SupersededError
from cache_store.registry_record import UNREADABLE_VERSION
from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer
from tests.support.worker_records import worker_record

OLD = worker_record("w0", incarnation="1" * 32)
NEW = worker_record("w0", incarnation="2" * 32)


async def test_a_lease_ends_by_itself(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session, redis_server.session(RedisRole.ROUTER) as reading:
        await RedisRegistryWriter(session).renew(OLD)
        left_ms = await reading.call(("PTTL", lease_key(OLD.incarnation)), 5.0)
        assert isinstance(left_ms, int)
        assert 0 < left_ms <= LEASE_S * 1000
        await RedisRegistryWriter(session, lease_s=0.05).renew(OLD)
        while await RedisRegistryReader(reading).workers():
            await asyncio.sleep(0.01)


async def test_a_store_that_lost_its_data_gets_the_worker_back_with_its_next_renewal(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session, redis_server.session(RedisRole.ROUTER) as reading:
        writer = RedisRegistryWriter(session)
        await writer.renew(OLD)
        redis_server.wipe()
        assert await writer.renew(OLD) is Renewal.NEW
        assert await RedisRegistryReader(reading).workers() == [OLD]
        assert SCHEMA_KEY in redis_server.key_names()


async def test_a_zombie_stays_refused_though_the_store_lost_its_data(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        zombie, successor = RedisRegistryWriter(session), RedisRegistryWriter(session)
        await zombie.renew(OLD)
        await successor.renew(NEW)
        redis_server.wipe()
        await successor.renew(NEW)
        with pytest.raises(SupersededError):
            await zombie.renew(OLD)


async def test_a_first_renewal_whose_answer_was_lost_may_be_repeated(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        await RedisRegistryWriter(session).renew(OLD)
        assert await RedisRegistryWriter(session).renew(OLD) is Renewal.KEPT


async def test_what_is_no_record_does_not_hide_the_others(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session, redis_server.session(RedisRole.ROUTER) as reading:
        await RedisRegistryWriter(session).renew(OLD)
        with redis.Redis.from_url(redis_server.urls.operator) as operator:
            operator.hset(CURRENT_KEY, "odd", b"no order")
            operator.hset(CURRENT_KEY, "strange", b"\xff")
            operator.hset(CURRENT_KEY, "broken", "1 " + "9" * 32)
            operator.set(lease_key(Incarnation("9" * 32)), "{}")
        records = await RedisRegistryReader(reading).workers()
        assert [(record.worker_id, record.protocol_version) for record in records] == [
            ("broken", UNREADABLE_VERSION),
            ("w0", OLD.protocol_version),
        ]


async def test_an_entry_that_is_none_does_not_keep_a_worker_out(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.urls.operator) as operator:
        operator.hset(CURRENT_KEY, OLD.worker_id, b"no order")
    async with redis_server.session(RedisRole.WORKER) as session, redis_server.session(RedisRole.ROUTER) as reading:
        assert await RedisRegistryWriter(session).renew(OLD) is Renewal.NEW
        assert await RedisRegistryReader(reading).workers() == [OLD]
        assert await sweep_dead(session) == 0


async def test_a_registry_out_of_reach_is_told() -> None:
    session = RedisSession("unix:///nowhere/redis.sock")
    with pytest.raises(RegistryUnavailableError, match="cannot be reached"):
        await RedisRegistryReader(session).workers()
    with pytest.raises(RegistryUnavailableError, match="cannot be reached"):
        await RedisRegistryWriter(session).renew(OLD)
