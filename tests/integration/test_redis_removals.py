"""Removals that are executed after their caller has given up, whole or in part: the writer notices, nothing is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import redis

from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexUnavailableError
from cache_store.redis_index import RedisIndexReader, RedisIndexWriter
from cache_store.redis_keys import INCARNATIONS_KEY, domains_key
from cache_store.redis_session import Command, RedisCallError, RedisSession, Reply
from cache_store.redis_sweep import drop_incarnation
from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer

ONE = Incarnation("1" * 32)
ACME, GLOBEX = DomainTag(b"A" * 16), DomainTag(b"G" * 16)
BLOCKS = b"".join(bytes([number]) * 16 for number in range(4))
ALL = {ACME: BLOCKS, GLOBEX: BLOCKS}

Removal = Callable[[RedisSession, RedisIndexWriter], Awaitable[None]]


class Torn(RedisSession):
    """Of one of its pipelines only the first commands are executed in time, the rest when it is told."""

    def __init__(self, url: str, number: int, num_first: int) -> None:
        super().__init__(url)
        self._number = number
        self._num_first = num_first
        self._before = -1
        self.rest: Sequence[Command] = ()
        self.was_torn = False

    async def pipeline(self, commands: Sequence[Command], deadline_s: float) -> list[Reply]:
        if self._before == 0:
            await self.execute_rest()
        self._before -= 1
        self._number -= 1
        if self._number != -1:
            return await super().pipeline(commands, deadline_s)
        self.was_torn = True
        self.rest = commands[self._num_first :]
        if self._num_first:
            await super().pipeline(commands[: self._num_first], deadline_s)
        raise RedisCallError("too late")

    async def call(self, command: Command, deadline_s: float) -> Reply:
        return (await self.pipeline([command], deadline_s))[0]

    def execute_rest_before(self, number: int) -> None:
        """Of the pipelines from now on."""
        self._before = number

    async def execute_rest(self) -> None:
        rest, self.rest, self._before = self.rest, (), -1
        if rest:
            await super().pipeline(rest, 5.0)


async def sweep(session: RedisSession, _: RedisIndexWriter) -> None:
    await drop_incarnation(session, ONE, 5.0)


async def remove(_: RedisSession, writer: RedisIndexWriter) -> None:
    await writer.apply(ONE, [BlockEvent(ACME, 3, BlockChange.REMOVED, BLOCKS)])


def cases() -> Iterator[tuple[int, int, int]]:
    """Which pipeline of a removal is torn, after how many commands, and before which later one the rest is executed."""
    for number in range(5):
        for num_first in range(4):
            for before in (0, 2, 9):
                yield number, num_first, before


async def assert_noticed(server: RedisServer, removal: Removal) -> None:
    num_torn = 0
    for number, num_first, before in cases():
        server.wipe()
        session = Torn(server.urls.worker, 2 + number, num_first)
        writer = RedisIndexWriter(session, 5.0)
        stored = [BlockEvent(tag, at, BlockChange.STORED, BLOCKS) for at, tag in enumerate(ALL, 1)]
        try:
            await writer.apply(ONE, stored)
            await writer.apply(ONE, [])
            try:
                await removal(session, writer)
            except (RedisCallError, IndexUnavailableError):
                num_torn += session.was_torn
            if session.was_torn:
                session.execute_rest_before(before)
                await heal(writer)
                await session.execute_rest()
                await heal(writer)
                await assert_complete(server, f"pipeline {number} after {num_first}, rest before {before}")
        finally:
            await session.close()
    assert num_torn > 20


async def heal(writer: RedisIndexWriter) -> None:
    """What the publisher does twice a second, with the blocks that there are now."""
    try:
        await writer.apply(ONE, [])
    except IndexUnavailableError:
        await writer.replace(ONE, ALL)


async def assert_complete(server: RedisServer, case: str) -> None:
    async with server.session(RedisRole.ROUTER) as session:
        reader = RedisIndexReader(session, 5.0)
        assert [await reader.lookup(tag, BLOCKS, [ONE]) for tag in ALL] == [{ONE: 4}, {ONE: 4}], case
    with redis.Redis.from_url(server.urls.operator) as operator:
        assert operator.smembers(INCARNATIONS_KEY) == {ONE.encode()}, case
        assert operator.smembers(domains_key(ONE)) == set(ALL), case


async def test_what_a_sweeper_removes_late_of_one_that_was_only_stopped_is_noticed(redis_server: RedisServer) -> None:
    await assert_noticed(redis_server, sweep)


async def test_what_the_writer_itself_removes_late_is_noticed(redis_server: RedisServer) -> None:
    await assert_noticed(redis_server, remove)
