"""Control stores and routers' directories over a real server, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis

from cache_store.clock import ManualClock
from services.tenants.directory import TenantDirectory
from services.tenants.master_key import MasterKey
from services.tenants.redis_store import CONTROL_KEY, ControlStore
from services.tenants.snapshot import SnapshotFile
from services.tenants.sync import DirectorySync
from tests.support.redis_servers import RedisServer

MASTER = MasterKey(bytes(range(32)))
OTHER_MASTER = MasterKey(bytes(range(1, 33)))


class RouterControl:
    """The control side of one router: store, directory, snapshot, sync."""

    def __init__(self, redis: Redis, folder: Path, master: MasterKey = MASTER) -> None:
        self.clock = ManualClock()
        self.store = ControlStore(redis, master, self.clock)
        self.directory = TenantDirectory(self.clock)
        self.snapshot = SnapshotFile(folder / "control.json", master)
        self.sync = DirectorySync(self.store, self.directory, self.snapshot, self.snapshot.load(), self.clock)


@asynccontextmanager
async def operator_client(server: RedisServer) -> AsyncIterator[Redis]:
    """A client with the rights that the control store has in production."""
    client = Redis.from_url(server.urls.operator)
    try:
        yield client
    finally:
        await client.aclose()


async def raw_control(redis: Redis) -> dict[bytes, bytes]:
    """The stored hash, to be put back later by `roll_back`."""
    return {bytes(name): bytes(value) for name, value in (await redis.hgetall(CONTROL_KEY)).items()}


async def roll_back(redis: Redis, old: dict[bytes, bytes]) -> None:
    """Makes the store what it was when `raw_control` was called, as a server started from an old dump would."""
    await redis.delete(CONTROL_KEY)
    if old:
        await redis.hset(CONTROL_KEY, mapping=old)
