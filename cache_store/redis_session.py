"""Calls to Redis with a deadline each, over a few connections that never carry a stale reply.

A connection is handed out again only after every reply of its last use was read. Whatever interrupts a call (its
deadline, cancellation, an error of the network) closes the connection, so a late reply cannot reach the next caller.

Every new connection compares the version of the layout (`redis_keys.SCHEMA_VERSION`). One session belongs to one event
loop. Replies are those of RESP2: int, bytes, None and lists of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from cache_store.errors import VersionError
from cache_store.redis_keys import SCHEMA_KEY, SCHEMA_VERSION
from cache_store.redis_scripts import Script

Argument: TypeAlias = str | bytes | int
Command: TypeAlias = Sequence[Argument]
Reply: TypeAlias = "int | bytes | list[Reply] | None"

MAX_CONNECTIONS = 16
OPEN_DEADLINE_S = 2.0

CLAIM_SCHEMA: Command = ("SET", SCHEMA_KEY, SCHEMA_VERSION, "NX")
"""Writers send it along with the first of their data."""


class RedisCallError(Exception):
    """Redis cannot be reached, does not answer in time, or refuses; the message says which."""


REDIS_ERRORS = (RedisCallError, VersionError)
"""What a call raises."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script with what it works on."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument]

    @property
    def by_name(self) -> Command:
        """For a server that has the script."""
        return (self.script.kind.value, self.script.sha1, len(self.keys), *self.keys, *self.arguments)

    @property
    def with_text(self) -> Command:
        """For one that does not."""
        return (self.script.by_text, self.script.text, len(self.keys), *self.keys, *self.arguments)


class RedisSession:
    """Calls to the server at `url`, at most MAX_CONNECTIONS at once; further ones wait within their deadline."""

    def __init__(self, url: str) -> None:
        self._factory = ConnectionPool.from_url(url, protocol=2, socket_timeout=None, socket_connect_timeout=None)
        self._idle: list[AbstractConnection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._closed = False

    async def open(self) -> None:
        """Checks that the server answers and has this layout. Raises RedisCallError, VersionError."""
        _check_schema(await self.call(("GET", SCHEMA_KEY), OPEN_DEADLINE_S))

    async def call(self, command: Command, deadline_s: float) -> Reply:
        """Reply of one command. Raises RedisCallError, VersionError."""
        [reply] = await self.pipeline([command], deadline_s)
        return reply

    async def pipeline(self, commands: Sequence[Command], deadline_s: float) -> list[Reply]:
        """Replies of commands sent in one piece, which is no transaction: all are tried, also where one is refused.

        Raises RedisCallError, VersionError.
        """
        return _answers(await self._exchange(commands, deadline_s))

    async def run_script(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], deadline_s: float
    ) -> Reply:
        """Reply of a script; sends its text where the server does not have it. Raises RedisCallError, VersionError."""
        [reply] = await self.run_scripts([ScriptCall(script, keys, arguments)], deadline_s)
        return reply

    async def run_scripts(self, calls: Sequence[ScriptCall], deadline_s: float) -> list[Reply]:
        """Replies of scripts sent in one piece; all are tried, and those that the server lacks once more with text.

        Raises RedisCallError, VersionError. `deadline_s` is for each of the two tries.
        """
        replies = await self._exchange([call.by_name for call in calls], deadline_s)
        missing = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            again = await self._exchange([calls[at].with_text for at in missing], deadline_s)
            for at, reply in zip(missing, again, strict=True):
                replies[at] = reply
        return _answers(replies)

    async def close(self) -> None:
        """Closes all connections; calls under way close theirs when they end."""
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    def check_invariants(self) -> None:
        """Connections that wait for a call are connected, few, and each waits once."""
        assert len(self._idle) <= MAX_CONNECTIONS
        assert len(set(map(id, self._idle))) == len(self._idle)
        assert all(connection.is_connected for connection in self._idle)
        assert not (self._closed and self._idle)

    async def _exchange(self, commands: Sequence[Command], deadline_s: float) -> list[Reply | ResponseError]:
        try:
            async with asyncio.timeout(deadline_s), self._slots:
                return await self._use_connection(commands)
        except TimeoutError as error:
            raise RedisCallError(f"Redis did not answer within {deadline_s * 1000:.0f} ms") from error
        except (RedisError, OSError) as error:
            raise RedisCallError(f"Redis cannot be reached: {error}") from error

    async def _use_connection(self, commands: Sequence[Command]) -> list[Reply | ResponseError]:
        if self._closed:
            raise OSError("the session is closed")
        connection = await self._idle_connection() or self._new_connection()
        try:
            if not connection.is_connected:
                await connection.connect()  # type: ignore[no-untyped-call] # of redis-py
                await _send(connection, [("GET", SCHEMA_KEY)])
                _check_schema(await _read(connection))
            await _send(connection, commands)
            replies = [await _read(connection) for _ in commands]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        await self._keep(connection)
        return replies

    async def _keep(self, connection: AbstractConnection) -> None:
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.append(connection)

    def _new_connection(self) -> AbstractConnection:
        connection: AbstractConnection = self._factory.make_connection()  # type: ignore[no-untyped-call] # of redis-py
        return connection

    async def _idle_connection(self) -> AbstractConnection | None:
        """The one used last, unless the server has closed it or sent something that nobody asked for."""
        while self._idle:
            connection = self._idle.pop()
            try:
                if not await connection.can_read():
                    return connection
            except RedisError:
                pass  # closed: the next one, or a new one
            await connection.disconnect(nowait=True)
        return None


def _answers(replies: Sequence[Reply | ResponseError]) -> list[Reply]:
    """The replies, where none is a refusal."""
    answers: list[Reply] = []
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise RedisCallError(f"Redis refuses: {reply}") from reply
        answers.append(reply)
    return answers


async def _send(connection: AbstractConnection, commands: Sequence[Command]) -> None:
    # redis-py's own packing takes up to 15 times as long.
    packed = [pack_command(tuple(each)) for each in commands]  # type: ignore[arg-type]  # the stub names a 1-tuple
    await connection.send_packed_command(packed, check_health=False)


async def _read(connection: AbstractConnection) -> Reply | ResponseError:
    try:
        reply: Reply = await connection.read_response()
    except ResponseError as error:
        return error
    return reply


def _check_schema(found: Reply | ResponseError) -> None:
    if isinstance(found, ResponseError):
        raise RedisCallError(f"Redis refuses: {found}") from found
    if found not in (None, str(SCHEMA_VERSION).encode()):
        version = found.decode("utf-8", "replace") if isinstance(found, bytes) else found
        raise VersionError("the layout of the index in Redis", version, SCHEMA_VERSION)
