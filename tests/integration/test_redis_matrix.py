"""The matrix of roles and commands: each command that the server has, asked of its own list of rights for each role.

What each role needs is asked in test_redis_check.py; here is what none may have, whatever the server offers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from services.cluster.redis_roles import RedisRole
from services.tenants.redis_store import CONTROL_KEY
from tests.chaos.store import Store

INDEX_KEY = "sc:{index}:incarnations"
FOREIGN_KEY = "somebody:else"
IN_CLUSTERS = {"clusterscan"}
"""Refused by a server that is in none, which is what we need."""
LISTING = {"scan", "randomkey", "dbsize"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Redis]:
    store = Store(tmp_path)
    await store.start()
    async with store.client() as client:
        yield client
    await store.kill()


class Matrix:
    """Rights as the server itself decides them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.commands: dict[str, tuple[int, set[str], int]] = {}
        """Arguments, categories and place of the first key (0: none) by name."""

    async def read(self) -> None:
        self._client.set_response_callback("COMMAND", lambda found, **_: found)
        for entry in await self._client.execute_command("COMMAND"):
            for each in entry[9] or [entry]:  # of a command that has some, its subcommands
                self._add(each)

    def _add(self, entry: Any) -> None:
        name, arity, flags, first_key, *_ = entry
        if b"movablekeys" in {_bytes(flag) for flag in flags}:
            return  # where its keys stand depends on its arguments
        words = _bytes(name).decode().lower()
        categories = {_bytes(each).decode().lstrip("@") for each in entry[6]}
        more = 1 if arity < 0 else 0
        self.commands[words] = (abs(arity) - 1 + more - words.count("|"), categories, first_key)

    async def allowed(self, role: RedisRole, key: str, *, having: str = "") -> set[str]:
        """Commands that a role may run on a key, of a category."""
        found = set()
        for name, (num_arguments, categories, _) in self.commands.items():
            if having and having not in categories:
                continue
            said = await self._client.execute_command("ACL", "DRYRUN", role, *name.split("|"), *[key] * num_arguments)
            if _bytes(said) == b"OK":
                found.add(name)
        return found

    def with_keys(self, names: set[str]) -> set[str]:
        return {name for name in names if self.commands[name][2]}


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


async def test_no_role_has_a_right_that_its_part_does_not_need(client: Redis) -> None:
    matrix = Matrix(client)
    await matrix.read()
    assert len(matrix.commands) > 150
    for role in RedisRole:
        for category in ("admin", "dangerous", "pubsub"):
            extra = await matrix.allowed(role, CONTROL_KEY, having=category) - {"info"}
            assert extra == set(), (role, category)
        assert matrix.with_keys(await matrix.allowed(role, FOREIGN_KEY)) - IN_CLUSTERS == set(), role
    writing = {role: matrix.with_keys(await matrix.allowed(role, CONTROL_KEY, having="write")) for role in RedisRole}
    assert {"hset", "hdel"} <= writing[RedisRole.OPERATOR]
    assert writing[RedisRole.ROUTER] == writing[RedisRole.WORKER] == set()
    reading = {role: matrix.with_keys(await matrix.allowed(role, CONTROL_KEY, having="read")) for role in RedisRole}
    assert "hgetall" in reading[RedisRole.ROUTER]
    assert reading[RedisRole.WORKER] == set()
    assert matrix.with_keys(await matrix.allowed(RedisRole.ROUTER, INDEX_KEY, having="write")) == set()
    assert {"sadd", "srem"} <= await matrix.allowed(RedisRole.WORKER, INDEX_KEY, having="write")
    for role in (RedisRole.ROUTER, RedisRole.WORKER):
        assert await matrix.allowed(role, INDEX_KEY) & LISTING == set(), role
