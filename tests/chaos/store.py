"""The Valkey of a cluster under faults: the embedded one's binary, users and rights, and what can happen to a server.

It has one user more than in production, `chaos`, who may take the others away and look at what is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import signal
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache_store.clock import SystemClock
from services.cluster.redis_roles import RedisRole, RoleUrls
from services.cluster.valkey import find_binary
from services.cluster.valkey_files import write_users
from services.tenants.redis_connect import control_store
from services.tenants.table import ControlTable
from tests.chaos.processes import IN_NO_NAMESPACE, POLL_S, end_process
from tests.support.router_host import MASTER

START_TIMEOUT_S = 20.0
_CHAOS = "chaos"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens: a Unix socket, or a TCP address inside a network namespace."""

    host: str = ""
    port: int = 0
    prefix: Sequence[str] = IN_NO_NAMESPACE


LOCAL = Place()


class Store:
    """A server that is started, hurt and started again on the same folder."""

    def __init__(self, folder: Path, place: Place = LOCAL) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._dump = folder / "dump"
        self._place = place
        self._process: Process | None = None
        self._password = secrets.token_hex(24)
        passwords = RoleUrls(*(secrets.token_hex(24) for _ in RedisRole))
        self._data.mkdir(parents=True)
        write_users(folder / "users.acl", passwords)
        hashed = hashlib.sha256(self._password.encode()).hexdigest()
        with (folder / "users.acl").open("a") as file:
            file.write(f"user {_CHAOS} on #{hashed} ~* &* +@all\n")
        self.urls = RoleUrls(*(self._url(role, passwords.of(role)) for role in RedisRole))

    async def start(self) -> None:
        """Starts it on what its folder holds; returns when it answers."""
        socket = str(self._folder / "s")
        options = {
            "port": str(self._place.port), "unixsocket": socket, "unixsocketperm": "700", "dir": str(self._data),
            "aclfile": str(self._folder / "users.acl"), "logfile": str(self._folder / "valkey.log"),
            "appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction",
            "bind": self._place.host or "127.0.0.1", "protected-mode": "no",
        }  # fmt: skip
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = await asyncio.create_subprocess_exec(
            *self._place.prefix, str(find_binary()), *arguments, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not await self.answers():
            assert time.monotonic() < deadline_s, f"Valkey does not answer; see {self._folder}"
            await asyncio.sleep(POLL_S)

    async def kill(self) -> None:
        """Ends it without a word."""
        if self._process is not None:
            await end_process(self._process)

    def pause(self) -> None:
        """It answers nobody, and connections stay."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """It answers again, also what was asked meanwhile."""
        self._send(signal.SIGCONT)

    def lose_data(self) -> None:
        """While it does not run: what it had stored is gone."""
        shutil.rmtree(self._data)
        self._data.mkdir()

    def keep_dump(self) -> None:
        """Copies what is stored now; an append-only file may be copied at any time."""
        shutil.copytree(self._data, self._dump)

    def go_back(self) -> None:
        """While it does not run: it will find what `keep_dump` kept."""
        shutil.rmtree(self._data)
        shutil.copytree(self._dump, self._data)

    async def remove_users(self, *roles: RedisRole) -> None:
        """These roles lose their rights and their connections; none: all."""
        async with self.client() as client:
            await client.execute_command("ACL", "DELUSER", *(roles or RedisRole))

    async def restore_users(self) -> None:
        """They have them back, with the passwords of before."""
        async with self.client() as client:
            await client.execute_command("ACL", "LOAD")

    async def answers(self) -> bool:
        """Whether it answers a PING."""
        try:
            async with self.client() as client:
                return bool(await client.ping())
        except (RedisError, OSError):
            return False

    def client(self) -> Redis:
        """As the user who may do everything; over the Unix socket, wherever the server listens beside."""
        url = f"unix://{_CHAOS}:{self._password}@{self._folder / 's'}?db=0"
        return Redis.from_url(url, socket_timeout=5.0)

    @property
    def chaos_user(self) -> tuple[str, str]:
        """Name and password of the user who may do everything."""
        return _CHAOS, self._password

    async def control(self) -> ControlTable:
        """The control data that are stored now."""
        url = f"unix://{_CHAOS}:{self._password}@{self._folder / 's'}?db=0"
        async with control_store(url, MASTER, SystemClock()) as store:
            return (await store.read()).table

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def _url(self, role: RedisRole, password: str) -> str:
        if self._place.host:
            return f"redis://{role}:{password}@{self._place.host}:{self._place.port}/0"
        return f"unix://{role}:{password}@{self._folder / 's'}?db=0"
