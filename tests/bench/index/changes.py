"""Time of changes in Redis: updates, the end of a dead worker, and the purge of a tenant among many.

Blocks of 1,000 tenants with 10 partitions each lie on every worker. After an end or a purge each key that it concerns
is asked for one by one, and so is each key that it does not concern; the server's memory must have shrunk by as much.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import xxhash

from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation
from cache_store.redis_index import RedisIndexWriter
from cache_store.redis_keys import blocks_key
from cache_store.redis_session import Command, RedisSession
from cache_store.redis_sweep import drop_incarnation
from services.cluster.redis_roles import RoleUrls
from tests.bench.index.server import server_us, used_memory
from tests.bench.index.stored import DEADLINE_S, digests, incarnations

_UPDATE_BLOCKS = 512
_UPDATE_TAG = DomainTag(b"updates' domain.")


@dataclass(frozen=True, slots=True)
class Tenants:
    """How many there are, and what they have."""

    num_tenants: int
    num_partitions: int
    num_workers: int
    num_blocks: int
    """Over all."""

    @property
    def per_set(self) -> int:
        """Blocks of a partition on a worker."""
        return max(1, self.num_blocks // (self.num_tenants * self.num_partitions * self.num_workers))

    def tags(self, tenant: int) -> list[DomainTag]:
        """Domains of a tenant."""
        names = (b"tenant %d partition %d" % (tenant, at) for at in range(self.num_partitions))
        return [DomainTag(xxhash.xxh3_128_digest(name)) for name in names]

    def all_tags(self) -> list[DomainTag]:
        """Of all tenants."""
        return [tag for tenant in range(self.num_tenants) for tag in self.tags(tenant)]


@dataclass(frozen=True, slots=True)
class Removal:
    """What one end or purge took."""

    wall_s: float
    server_s: float
    num_keys: int
    num_found: int
    """Keys that were there before."""
    num_left: int
    """Of them after it."""
    num_lost: int
    """Others' keys that are missing after it."""
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What was measured."""

    stored_us: float
    """Wall time per block that is stored, in batches."""
    removed_us: float
    stored_server_us: float
    removed_server_us: float
    bytes_per_block: float
    drop: Removal
    purge: Removal


async def measure(urls: RoleUrls, tenants: Tenants, num_updates: int) -> Changes:
    """Fills an empty server, updates, drops a worker, purges a tenant."""
    observer, session = RedisSession(urls.operator), RedisSession(urls.worker)
    workers, tags = incarnations(tenants.num_workers), tenants.all_tags()
    writer = RedisIndexWriter(session, DEADLINE_S)
    before = await used_memory(observer)
    for incarnation in workers:
        blocks = {tag: digests(f"{incarnation}{tag.hex()}", tenants.per_set) for tag in tags}
        await writer.replace(incarnation, blocks)
    filled = await used_memory(observer)
    per_block = (filled - before) / (tenants.per_set * len(tags) * len(workers))
    dead, living = workers[-1], workers[:-1]
    stored, removed = await _update(writer, observer, dead, num_updates)
    kept = [blocks_key(tag, name) for name in living for tag in tags]

    async def drop() -> None:
        await drop_incarnation(session, dead, DEADLINE_S)

    dropped = await _removal(observer, [blocks_key(tag, dead) for tag in tags], kept, drop)
    gone = tenants.tags(tenants.num_tenants // 2)
    keys = [blocks_key(tag, name) for name in living for tag in gone]
    others = sorted(set(kept) - set(keys))

    await asyncio.gather(*(session.call(("PING",), DEADLINE_S) for _ in living))  # so that no connection is made later

    async def purge() -> None:
        """Each worker takes its own blocks out; they do so at once."""
        events = [BlockEvent(tag, 0, BlockChange.CLEARED, b"") for tag in gone]
        await asyncio.gather(*(writer.apply(name, _numbered(events)) for name in living))

    purged = await _removal(observer, keys, others, purge)
    await observer.close()
    await session.close()
    return Changes(stored[0], removed[0], stored[1], removed[1], per_block, dropped, purged)


async def _update(
    writer: RedisIndexWriter, observer: RedisSession, incarnation: Incarnation, num_updates: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Wall and server time per block of storing and of removing, in microseconds."""
    number, found = 1_000_000, []
    for change in (BlockChange.STORED, BlockChange.REMOVED):
        before_us, started_s = await server_us(observer), time.perf_counter()
        for at in range(num_updates):
            number += 1
            event = BlockEvent(_UPDATE_TAG, number, change, digests(f"update {at}", _UPDATE_BLOCKS))
            await writer.apply(incarnation, [event])
        num_blocks = num_updates * _UPDATE_BLOCKS
        wall_us = (time.perf_counter() - started_s) * 1e6
        found.append((wall_us / num_blocks, (await server_us(observer) - before_us) / num_blocks))
    return found[0], found[1]


async def _removal(
    observer: RedisSession, keys: Sequence[str], others: Sequence[str], remove: Callable[[], Awaitable[None]]
) -> Removal:
    num_found = await _count(observer, keys)
    memory, before_us = await used_memory(observer), await server_us(observer)
    started_s = time.perf_counter()
    await remove()
    wall_s = time.perf_counter() - started_s
    server_s = (await server_us(observer) - before_us) / 1e6
    freed = memory - await used_memory(observer)
    num_left = await _count(observer, keys)
    num_lost = len(others) - await _count(observer, others)
    return Removal(wall_s, server_s, len(keys), num_found, num_left, num_lost, freed)


async def _count(observer: RedisSession, keys: Sequence[str]) -> int:
    """How many of the keys exist."""
    found = 0
    for start in range(0, len(keys), 1_000):
        commands: list[Command] = [("EXISTS", key) for key in keys[start : start + 1_000]]
        found += sum(reply for reply in await observer.pipeline(commands, DEADLINE_S) if isinstance(reply, int))
    return found


def _numbered(events: Sequence[BlockEvent]) -> list[BlockEvent]:
    """One writer's numbers follow one another, from far above those that it has written."""
    return [BlockEvent(each.domain_tag, 2_000_000 + at, each.change, each.digests) for at, each in enumerate(events)]
