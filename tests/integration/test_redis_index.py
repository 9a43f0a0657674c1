"""The index in real servers: lost writes are noticed, nothing is left behind, other layouts are refused."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import redis

from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexUnavailableError
from cache_store.redis_index import RedisIndexReader, RedisIndexWriter
from cache_store.redis_keys import SCHEMA_KEY, blocks_key, domains_key, mark_key
from cache_store.redis_session import RedisSession
from services.cluster.redis_roles import RedisRole
from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import RedisServer

ACME = DomainTag(b"A" * 16)
GLOBEX = DomainTag(b"G" * 16)
ONE = Incarnation("1" * 32)
TWO = Incarnation("2" * 32)
BLOCKS = b"".join(bytes([number]) * 16 for number in range(8))


def stored(number: int, digests: bytes = BLOCKS, tag: DomainTag = ACME) -> BlockEvent:
    return BlockEvent(tag, number, BlockChange.STORED, digests)


def removed(number: int, digests: bytes, tag: DomainTag = ACME) -> BlockEvent:
    return BlockEvent(tag, number, BlockChange.REMOVED, digests)


async def test_a_store_that_lost_its_data_is_noticed_and_a_replacement_heals(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.ROUTER) as reading, redis_server.session(RedisRole.WORKER) as writing:
        reader, writer = RedisIndexReader(reading, 5.0), RedisIndexWriter(writing)
        await writer.apply(ONE, [stored(1)])
        await writer.apply(ONE, [])
        redis_server.wipe()
        with pytest.raises(IndexUnavailableError, match="lost writes"):
            await writer.apply(ONE, [])
        with pytest.raises(IndexUnavailableError, match="replace"):
            await writer.apply(ONE, [stored(2)])
        await writer.replace(ONE, {ACME: BLOCKS})
        await writer.apply(ONE, [removed(7, BLOCKS[-16:])])
        assert await reader.lookup(ACME, BLOCKS, [ONE]) == {ONE: 7}


async def test_a_store_restored_from_an_old_copy_is_noticed(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        writer = RedisIndexWriter(session)
        await writer.apply(ONE, [stored(1)])
        with redis.Redis.from_url(redis_server.urls.operator) as operator:
            old_mark, old_blocks = operator.get(mark_key(ONE)), operator.smembers(blocks_key(ACME, ONE))
            await writer.apply(ONE, [removed(2, BLOCKS[-16:])])
            operator.set(mark_key(ONE), old_mark)
            operator.sadd(blocks_key(ACME, ONE), *old_blocks)
        with pytest.raises(IndexUnavailableError, match="lost writes"):
            await writer.apply(ONE, [stored(3, BLOCKS[-16:])])


async def test_a_write_that_failed_leaves_the_index_in_doubt_until_it_is_replaced(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        session = RedisSession(server.urls.worker)
        writer = RedisIndexWriter(session)
        await writer.apply(ONE, [stored(1, BLOCKS[:16])])
        os.kill(server.pid, signal.SIGKILL)
        while server.is_running():
            await asyncio.sleep(0.01)
        with pytest.raises(IndexUnavailableError, match="cannot be reached"):
            await writer.apply(ONE, [stored(2, BLOCKS[16:32])])
        server.restart()
        with pytest.raises(IndexUnavailableError, match="done in part"):
            await writer.apply(ONE, [stored(2, BLOCKS[16:32])])
        await writer.replace(ONE, {ACME: BLOCKS[:48]})
        found = await session.call(("SMEMBERS", blocks_key(ACME, ONE)), 5.0)
        assert isinstance(found, list)
        assert len(found) == 3
        await session.close()


async def test_a_cancelled_write_leaves_the_index_in_doubt(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        writer = RedisIndexWriter(session)
        await writer.apply(ONE, [stored(1, BLOCKS[:16])])
        write = asyncio.create_task(writer.apply(ONE, [stored(2, BLOCKS[16:32])]))
        await asyncio.sleep(0)
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        with pytest.raises(IndexUnavailableError, match="done in part"):
            await writer.apply(ONE, [stored(2, BLOCKS[16:32])])


async def test_wherever_a_write_is_cancelled_a_replacement_heals(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.ROUTER) as reading, redis_server.session(RedisRole.WORKER) as writing:
        reader, writer = RedisIndexReader(reading, 5.0), RedisIndexWriter(writing)
        for num_turns in range(30):
            write = asyncio.create_task(writer.apply(ONE, [stored(num_turns), removed(num_turns + 1, BLOCKS[-16:])]))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            write.cancel()
            await asyncio.wait([write])
            await writer.replace(ONE, {ACME: BLOCKS[:48]})
            await writer.apply(ONE, [stored(100, BLOCKS[48:64])])
            assert await reader.lookup(ACME, BLOCKS, [ONE]) == {ONE: 4}
            writing.check_invariants()


async def test_a_domain_of_which_nothing_is_left_leaves_no_trace(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        writer = RedisIndexWriter(session)
        await writer.apply(ONE, [stored(1), stored(2, tag=GLOBEX)])
        backwards = b"".join(BLOCKS[at : at + 16] for at in range(len(BLOCKS) - 16, -1, -16))
        await writer.apply(ONE, [removed(3, backwards)])
        assert await session.call(("SMEMBERS", domains_key(ONE)), 5.0) == [GLOBEX]
        assert blocks_key(ACME, ONE) not in redis_server.key_names()
        await writer.apply(ONE, [stored(4)])
        assert blocks_key(ACME, ONE) in redis_server.key_names()
        await writer.apply(ONE, [BlockEvent(ACME, 5, BlockChange.CLEARED, b"")])
        assert await session.call(("SMEMBERS", domains_key(ONE)), 5.0) == [GLOBEX]
        assert blocks_key(ACME, ONE) not in redis_server.key_names()
        await writer.drop(ONE)
        assert redis_server.key_names() == [SCHEMA_KEY]


async def test_another_layout_is_told_by_readers_and_writers(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.urls.operator) as operator:
        operator.set(SCHEMA_KEY, "99")
    async with redis_server.session(RedisRole.ROUTER) as reading, redis_server.session(RedisRole.WORKER) as writing:
        with pytest.raises(IndexUnavailableError, match="version 99"):
            await RedisIndexReader(reading, 5.0).lookup(ACME, BLOCKS, [ONE])
        with pytest.raises(IndexUnavailableError, match="version 99"):
            await RedisIndexWriter(writing).apply(ONE, [stored(1)])
        assert redis_server.key_names() == [SCHEMA_KEY]


async def test_entries_that_break_the_order_of_a_chain_cost_no_error(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.ROUTER) as reading, redis_server.session(RedisRole.WORKER) as writing:
        await RedisIndexWriter(writing).apply(ONE, [stored(1, BLOCKS[16:48] + BLOCKS[80:])])
        found = await RedisIndexReader(reading, 5.0).lookup(ACME, BLOCKS, [ONE, TWO])
        assert found[TWO] == 0
        assert 0 <= found[ONE] <= 8
