"""Calls to real servers: late replies, deadlines, restarts, refusals, versions."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cache_store.errors import VersionError
from cache_store.redis_keys import SCHEMA_KEY, SCHEMA_VERSION
from cache_store.redis_scripts import Script, ScriptKind
from cache_store.redis_session import CLAIM_SCHEMA, MAX_CONNECTIONS, RedisCallError, RedisSession
from services.cluster.redis_roles import RedisRole
from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import RedisServer

LATE = ("BLPOP", "sc:probe:empty", "0.2")
"""Answers None after 0.2 s."""


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A server that a test may stop."""
    with EmbeddedValkey.start(tmp_path) as server:
        yield server


async def test_replies_come_in_the_order_of_the_commands(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.OPERATOR) as session:
        await session.call(("SET", "sc:probe", b"\x00\xff"), 5.0)
        commands = [("GET", "sc:probe"), ("EXISTS", "sc:probe"), ("GET", "sc:none"), ("MGET", "sc:none", "sc:probe")]
        assert await session.pipeline(commands, 5.0) == [b"\x00\xff", 1, None, [None, b"\x00\xff"]]


async def test_after_a_deadline_the_late_reply_reaches_nobody(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.OPERATOR) as session:
        await session.open()
        with pytest.raises(RedisCallError, match="did not answer within 50 ms"):
            await session.call(LATE, 0.05)
        assert await session.call(("ECHO", "mine"), 5.0) == b"mine"
        await asyncio.sleep(0.25)
        assert await session.call(("ECHO", "mine too"), 5.0) == b"mine too"


async def test_after_a_cancellation_the_late_reply_reaches_nobody(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.OPERATOR) as session:
        await session.open()
        call = asyncio.create_task(session.call(LATE, 5.0))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await session.call(("ECHO", "mine"), 5.0) == b"mine"
        await asyncio.sleep(0.25)
        assert await session.call(("ECHO", "mine too"), 5.0) == b"mine too"


async def test_a_storm_of_cancellations_mixes_no_replies_and_leaks_no_slot(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.ROUTER) as session:

        async def cancelled_after(number: int, num_turns: int) -> None:
            call = asyncio.create_task(session.call(("ECHO", f"{number}"), 5.0))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            call.cancel()
            try:
                reply = await call
            except asyncio.CancelledError:
                return
            assert reply == str(number).encode()

        await asyncio.gather(*(cancelled_after(number, number % 40) for number in range(400)))
        calls = (session.call(("ECHO", f"after {number}"), 5.0) for number in range(3 * MAX_CONNECTIONS))
        assert await asyncio.gather(*calls) == [f"after {number}".encode() for number in range(3 * MAX_CONNECTIONS)]
        session.check_invariants()


async def test_a_refused_command_is_told_and_spoils_nothing(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as session:
        for _ in range(2):
            with pytest.raises(RedisCallError, match=r"refuses.*permissions"):
                await session.pipeline([("SET", "sc:inc:{probe}:mark", "1"), ("GET", "sc:control"), ("PING",)], 5.0)
        assert await session.call(("GET", "sc:inc:{probe}:mark"), 5.0) == b"1"


@pytest.mark.parametrize("kind", list(ScriptKind))
async def test_a_script_is_sent_where_the_server_does_not_have_it(redis_server: RedisServer, kind: ScriptKind) -> None:
    script = Script(kind, f"return {{KEYS[1], ARGV[1], '{os.urandom(8).hex()}'}}".encode())
    async with redis_server.session(RedisRole.OPERATOR) as session:
        first = await session.run_script(script, ["sc:probe"], ["b"], 5.0)
        assert isinstance(first, list)
        assert first[:2] == [b"sc:probe", b"b"]
        assert await session.run_script(script, ["sc:probe"], ["b"], 5.0) == first


async def test_a_stopped_server_is_told_within_the_deadline(own_valkey: EmbeddedValkey) -> None:
    session = RedisSession(own_valkey.urls.router)
    await session.open()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RedisCallError, match="did not answer"):
            await session.call(("ECHO", "lost"), 0.05)
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    assert await session.call(("ECHO", "mine"), 5.0) == b"mine"
    await session.close()


async def test_a_restarted_server_is_found_again(own_valkey: EmbeddedValkey) -> None:
    session = RedisSession(own_valkey.urls.router)
    await asyncio.gather(*(session.call(("ECHO", "x"), 5.0) for _ in range(4)))
    own_valkey.restart()
    await asyncio.sleep(0.05)
    assert await session.call(("ECHO", "mine"), 5.0) == b"mine"
    await session.close()


async def test_a_server_that_is_away_is_told(own_valkey: EmbeddedValkey) -> None:
    session = RedisSession(own_valkey.urls.router)
    await session.open()
    own_valkey.stop()
    with pytest.raises(RedisCallError, match="cannot be reached"):
        await session.call(("ECHO", "x"), 5.0)
    await session.close()


async def test_a_wrong_password_is_told(redis_server: RedisServer) -> None:
    session = RedisSession(redis_server.urls.router.replace("router:", "router:x"))
    with pytest.raises(RedisCallError, match="invalid username-password"):
        await session.open()
    await session.close()


async def test_a_closed_session_calls_no_more(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.ROUTER) as session:
        await session.open()
    with pytest.raises(RedisCallError, match="closed"):
        await session.call(("ECHO", "x"), 5.0)


async def test_another_layout_is_refused_by_name_on_every_new_connection(redis_server: RedisServer) -> None:
    async with redis_server.session(RedisRole.WORKER) as before, redis_server.session(RedisRole.ROUTER) as after:
        await before.call(CLAIM_SCHEMA, 5.0)
        await after.open()
        with redis.Redis.from_url(redis_server.urls.operator) as operator:
            assert operator.get(SCHEMA_KEY) == str(SCHEMA_VERSION).encode()
            operator.set(SCHEMA_KEY, "99")
        async with redis_server.session(RedisRole.ROUTER) as late:
            with pytest.raises(VersionError, match="layout of the index in Redis has version 99, this build speaks"):
                await late.call(("ECHO", "x"), 5.0)
            with pytest.raises(VersionError):
                await late.open()
