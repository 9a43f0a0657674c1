"""The simulated store answers as Valkey and Redis do. Its behaviour as index and registry: the contract suites."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cache_store.clock import SystemClock
from cache_store.redis_scripts import ScriptKind, load_script
from cache_store.redis_session import RedisSession
from services.cluster.redis_roles import RedisRole
from tests.simulation.store import Store
from tests.simulation.store_server import StoreSession
from tests.support.redis_servers import RedisServer

NUM_COMMANDS = 400
UNORDERED = {"SMEMBERS", "SRANDMEMBER"}

LOOKUP = load_script("lookup", ScriptKind.READS)
RENEW = load_script("renew", ScriptKind.WRITES)
PUBLISH = load_script("publish_quotas", ScriptKind.WRITES)


def commands(rng: random.Random) -> list[tuple[Any, ...]]:
    """What the product sends, on few keys, so that kinds and emptiness of keys come across."""
    made: list[tuple[Any, ...]] = []
    for _ in range(NUM_COMMANDS):
        text, hashed, members, stream = (f"sc:sim:{kind}:{rng.randrange(3)}" for kind in ("t", "h", "s", "x"))
        words = [f"m{rng.randrange(6)}" for _ in range(rng.randint(1, 3))]
        word = words[0]
        made.append(
            rng.choice(
                (
                    ("SET", text, word),
                    ("SET", text, word, "GET"),
                    ("SET", text, word, "NX"),
                    ("SET", text, word, "PX", 100_000, "GET"),
                    ("GET", rng.choice((text, members))),
                    ("MGET", text, hashed, "sc:sim:none"),
                    ("DEL", text),
                    ("UNLINK", text, members),
                    ("EXISTS", text, members),
                    ("SADD", rng.choice((members, text)), *words),
                    ("SADD", members, *words),
                    ("SREM", members, *words),
                    ("SMEMBERS", members),
                    ("SISMEMBER", members, word),
                    ("SRANDMEMBER", members, 100),
                    ("HSET", hashed, word, "1", "f", word),
                    ("HGET", hashed, word),
                    ("HMGET", hashed, word, "f"),
                    ("HDEL", hashed, *words),
                    ("XADD", stream, "MAXLEN", 5, "*", "from", word, "mark", "2"),
                    ("XADD", rng.choice((stream, text)), "*", "from", word),
                    ("XRANGE", stream, "-", "+"),
                    ("XRANGE", stream, "-", "+", "COUNT", 2),
                    ("XREVRANGE", stream, "+", "-", "COUNT", 1),
                    ("UNLINK", stream),
                )
            )
        )
    return made


def comparable(command: tuple[Any, ...], answer: Any) -> Any:
    """An answer without what is the server's own affair: ids of entries, order of members, words of errors."""
    if isinstance(answer, Exception):
        return str(answer).split()[0]
    if command[0] in UNORDERED:
        return sorted(answer)
    if command[0] == "XADD":
        return "an id"
    if command[0] in {"XRANGE", "XREVRANGE"}:
        return [fields for _, fields in answer]
    return answer


@pytest.mark.parametrize("seed", range(4))
async def test_it_answers_random_commands_as_a_server_does(redis_server: RedisServer, seed: int) -> None:
    store = Store(lambda: round(SystemClock().unix_s() * 1000), random.Random(seed))
    async with redis_server.session(RedisRole.OPERATOR) as session:
        for command in commands(random.Random(seed)):
            [real] = await session._exchange([command], 5.0)
            assert comparable(command, store.execute(command)) == comparable(command, real), command


async def test_a_stream_goes_on_after_an_id_that_was_read(redis_server: RedisServer) -> None:
    async def seen(session: RedisSession) -> list[Any]:
        ids = [await session.call(("XADD", "sc:sim:x", "*", "n", number), 5.0) for number in range(4)]
        after = await session.call(("XRANGE", "sc:sim:x", b"(" + ids[1], "+"), 5.0)  # type: ignore[operator]
        last = await session.call(("XREVRANGE", "sc:sim:x", "+", "-", "COUNT", 1), 5.0)
        return [[ids.index(entry[0]) for entry in after], [ids.index(entry[0]) for entry in last]]

    async with redis_server.session(RedisRole.OPERATOR) as session:
        assert await seen(session) == [[2, 3], [3]]
    assert await seen(StoreSession(Store(lambda: 7, random.Random(0)))) == [[2, 3], [3]]


async def test_a_walk_over_a_set_finds_every_member(redis_server: RedisServer) -> None:
    async def walked(session: RedisSession) -> set[bytes]:
        await session.call(("SADD", "sc:sim:s", *range(1000)), 5.0)
        cursor, members = b"0", set()
        while True:
            [cursor, found] = await session.call(("SSCAN", "sc:sim:s", cursor, "COUNT", 100), 5.0)  # type: ignore[misc, assignment]
            members |= set(found)
            if cursor == b"0":
                return members

    async with redis_server.session(RedisRole.OPERATOR) as session:
        assert len(await walked(session)) == 1000
    assert len(await walked(StoreSession(Store(lambda: 7, random.Random(0))))) == 1000


async def test_scripts_answer_as_a_server_does(redis_server: RedisServer) -> None:
    async def answers(session: RedisSession) -> list[Any]:
        chain = b"".join(bytes([number]) * 16 for number in range(5))
        await session.call(("SADD", "sc:sim:s", *(chain[at : at + 16] for at in range(0, 48, 16))), 5.0)
        found = [await session.run_script(LOOKUP, ["sc:sim:s", "sc:sim:none"], [chain], 5.0)]
        for expected, head in (("", "one"), ("", "two"), ("one", "three")):
            found.append(await session.run_script(PUBLISH, ["sc:sim:q"], [expected, head, "body"], 5.0))
        orders: dict[str, bytes] = {}
        for incarnation in ("aa", "aa", "bb", "aa", "bb"):
            arguments = ["w0", incarnation, orders.get(incarnation, b""), "record", 60_000]
            reply = await session.run_script(RENEW, ["sc:sim:current", f"sc:sim:{incarnation}"], arguments, 5.0)
            assert isinstance(reply, list)
            state, orders[incarnation] = reply  # type: ignore[assignment]
            found.append(state)
        return [*found, orders["bb"] > orders["aa"]]

    async with redis_server.session(RedisRole.OPERATOR) as session:
        real = await answers(session)
    assert real == [[3, 0], 1, 0, 1, b"new", b"kept", b"new", b"superseded", b"kept", True]
    clock = SystemClock()
    assert await answers(StoreSession(Store(lambda: round(clock.unix_s() * 1000), random.Random(0)))) == real
