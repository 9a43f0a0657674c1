"""The store as a server at the other end of a line: it goes down, stands still, comes back empty or with an old copy.

`SimulatedSession` is the product's session with this line in place of its connections; deadlines, repetitions of
scripts and errors are its own. Commands that were sent are executed when they arrive, whether their sender still
waits or not. What two calls send may arrive in any order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from cache_store.redis_session import MAX_CONNECTIONS, Command, RedisSession
from services.cluster.redis_roles import RedisRole
from tests.simulation.loop import current_process
from tests.simulation.network import Network
from tests.simulation.store import Answer, Store

PLACE = "store"
UNIX_START_MS = 1_750_000_000_000
MAX_DUMPS = 8
DUMP_S = 1.0


class ServerPhase(StrEnum):
    """Of the store."""

    UP = "up"
    DOWN = "down"
    STOPPED = "stopped"


@dataclass
class Losses:
    """Parts of what is sent on a line that are lost."""

    requests: float = 0.0
    replies: float = 0.0
    late: float = 0.0
    """Executed, but only after the sender has given up."""


class StoreServer:
    """Of one run."""

    def __init__(self, network: Network, seed: int) -> None:
        self._network = network
        self._loop = network.loop
        self._rng = random.Random(f"store/{seed}")
        self.store = Store(lambda: UNIX_START_MS + round(self._loop.time() * 1000), random.Random(f"data/{seed}"))
        self.phase = ServerPhase.UP
        self.refused: set[RedisRole] = set()
        self.losses: dict[str, Losses] = {}
        """By the place at the other end."""
        self._waiting: list[tuple[str, RedisRole, Sequence[Command], asyncio.Future[list[Answer]]]] = []
        self._dumps: list[Any] = []
        self._loop.outside(0.5, self._dump_now_and_then)

    def send(self, place: str, role: RedisRole, commands: Sequence[Command]) -> asyncio.Future[list[Answer]]:
        """The answers, where they come."""
        future: asyncio.Future[list[Answer]] = self._loop.create_future()
        losses = self.losses.get(place)
        if losses is not None and self._rng.random() < losses.requests:
            return future
        delay_s = self._network.delay_s(place, PLACE)
        if losses is not None and self._rng.random() < losses.late:
            delay_s += self._rng.uniform(0.1, 3.0)
        self._loop.outside(delay_s, self._arrive, place, role, commands, future)
        return future

    def go_down(self) -> None:
        """Connections are refused."""
        self.phase = ServerPhase.DOWN
        for place, _, _, future in self._waiting:
            self._fail(place, future)
        self._waiting.clear()

    def stop(self) -> None:
        """As SIGSTOP."""
        self.phase = ServerPhase.STOPPED

    def go_on(self) -> None:
        """As SIGCONT, or up again with its data."""
        self.phase = ServerPhase.UP
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._arrive(*each)

    def restart_empty(self) -> None:
        """Up again without data."""
        self.store.restart({})
        self.go_on()

    def restart_old(self, age: int) -> None:
        """Up again with a copy of some time ago: `age` is its number, from the newest on."""
        self.store.restart(self._dumps[-1 - min(age, len(self._dumps) - 1)] if self._dumps else {})
        self.go_on()

    def _dump_now_and_then(self) -> None:
        if self.phase is ServerPhase.UP:
            self._dumps = [*self._dumps[-MAX_DUMPS + 1 :], self.store.dump()]
        self._loop.outside(DUMP_S, self._dump_now_and_then)

    def _arrive(
        self, place: str, role: RedisRole, commands: Sequence[Command], future: asyncio.Future[list[Answer]]
    ) -> None:
        if self._network.is_cut(place, PLACE):
            if self._rng.random() < 0.5:  # the line carries it when it heals, or its sender's end is gone by then
                self._loop.outside(0.25, self._arrive, place, role, commands, future)
            return
        if self.phase is ServerPhase.STOPPED:
            self._waiting.append((place, role, commands, future))
            return
        if self.phase is ServerPhase.DOWN:
            self._fail(place, future)
            return
        answers: list[Answer] = (
            [ResponseError("NOPERM this user has no permissions") for _ in commands]
            if role in self.refused
            else [self.store.execute(command) for command in commands]
        )
        losses = self.losses.get(place)
        if losses is None or self._rng.random() >= losses.replies:
            self._loop.outside(self._network.delay_s(place, PLACE), self._answer, place, future, answers)

    def _answer(self, place: str, future: asyncio.Future[list[Answer]], answers: list[Answer]) -> None:
        if not future.done() and not self._network.is_cut(place, PLACE):
            future.set_result(answers)

    def _fail(self, place: str, future: asyncio.Future[list[Answer]]) -> None:
        def fail() -> None:
            if not future.done():
                future.set_exception(RedisConnectionError("Connection refused."))

        self._loop.outside(self._network.delay_s(place, PLACE), fail)


class SimulatedSession(RedisSession):
    """In place of cache_store.redis_session.RedisSession."""

    def __init__(self, server: StoreServer, role: RedisRole) -> None:
        owner = current_process()
        assert owner is not None, "a session is some process's"
        self._server = server
        self._role = role
        self._place = owner.place
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._closed = False

    async def _use_connection(self, commands: Sequence[Command]) -> Any:
        if self._closed:
            raise OSError("the session is closed")
        return await self._server.send(self._place, self._role, commands)

    async def close(self) -> None:
        self._closed = True


class StoreSession(RedisSession):
    """A session without a line: everything is answered at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._closed = False

    async def _use_connection(self, commands: Sequence[Command]) -> Any:
        return [self._store.execute(command) for command in commands]

    async def close(self) -> None:
        self._closed = True


class SimulatedRedis:
    """In place of redis.asyncio.Redis, for the control data."""

    def __init__(self, server: StoreServer) -> None:
        owner = current_process()
        assert owner is not None, "a client is some process's"
        self._server = server
        self._place = owner.place

    async def hget(self, name: str, key: str) -> Any:
        return await self._one("HGET", name, key)

    async def hgetall(self, name: str) -> dict[bytes, bytes]:
        flat = await self._one("HGETALL", name)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    async def eval(self, script: str, numkeys: int, *keys_and_args: str) -> Any:
        return await self._one("EVAL", script, numkeys, *keys_and_args)

    async def _one(self, *command: Any) -> Any:
        [answer] = await self._server.send(self._place, RedisRole.OPERATOR, [command])
        if isinstance(answer, Exception):
            raise answer
        return answer
