"""Real servers for tests: the embedded Valkey, and the PATH's redis-server under the same users and rights.

Both are started once per session and shared, so a test that counts on an empty store takes `redis_server`, which is
emptied before each test.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from cache_store.redis_session import RedisSession
from services.cluster.redis_roles import RedisRole, RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.cluster.valkey_files import write_users

LAUNCHER = Path(__file__).parents[2] / "services" / "cluster" / "die_with_parent.py"
NO_REDIS = "redis-server is not on the PATH"


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running server and how its users reach it."""

    name: str
    urls: RoleUrls

    @asynccontextmanager
    async def session(self, role: RedisRole) -> AsyncIterator[RedisSession]:
        """Calls as `role`."""
        session = RedisSession(self.urls.of(role))
        yield session
        await session.close()

    def wipe(self) -> None:
        """Removes everything that belongs to Stemcache."""
        self.remove("sc:*")

    def remove(self, pattern: str) -> None:
        """Removes the keys that fit."""
        if keys := self.key_names(pattern):
            with redis.Redis.from_url(self.urls.operator) as client:
                client.unlink(*keys)

    def key_names(self, pattern: str = "sc:*") -> list[str]:
        """Names of the keys that fit, sorted."""
        with redis.Redis.from_url(self.urls.operator, decode_responses=True) as client:
            return sorted(client.scan_iter(pattern, count=1000))


@contextmanager
def running_redis(binary: Path, folder: Path) -> Iterator[RedisServer]:
    """Runs Redis in memory on a Unix socket in `folder` until the block ends."""
    passwords = RoleUrls(*(secrets.token_hex(24) for _ in RedisRole))
    write_users(folder / "users.acl", passwords)
    socket = folder / "redis.sock"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "aclfile": str(folder / "users.acl"),
        "dir": str(folder),
        "save": "",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(int(signal.SIGKILL))]
    process = subprocess.Popen([*launcher, str(binary), *arguments], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        server = RedisServer(
            "redis", RoleUrls(*(f"unix://{role}:{passwords.of(role)}@{socket}?db=0" for role in RedisRole))
        )
        deadline = time.monotonic() + 10
        while not _answers(server):
            assert process.poll() is None, f"{binary} ended with exit code {process.returncode}"
            assert time.monotonic() < deadline, f"{binary} did not answer within 10 s"
            time.sleep(0.01)
        yield server
    finally:
        process.terminate()
        process.wait(10)


def _answers(server: RedisServer) -> bool:
    try:
        server.key_names()
    except redis.ConnectionError:
        return False
    return True


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedValkey]:
    """The embedded Valkey, one for the session."""
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, EmbeddedValkey.start(Path(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def path_redis() -> Iterator[RedisServer]:
    """Redis from the PATH, one for the session; skips where there is none."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip(NO_REDIS)
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, running_redis(Path(binary), Path(folder)) as server:
        yield server


def server_named(request: pytest.FixtureRequest, name: str) -> RedisServer:
    """`valkey` or `redis`, emptied; for fixtures that have further implementations beside."""
    if name == "valkey":
        server = RedisServer("valkey", request.getfixturevalue("valkey").urls)
    else:
        server = request.getfixturevalue("path_redis")
    server.wipe()
    return server


@pytest.fixture(params=["valkey", "redis"])
def redis_server(request: pytest.FixtureRequest) -> RedisServer:
    """Each server in turn, emptied."""
    return server_named(request, request.param)
