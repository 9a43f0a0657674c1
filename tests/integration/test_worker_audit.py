"""Audits in a whole worker: what went bad leaves the index too, the registry tells it, another tenant keeps its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import MappingProxyType

from cache_store.audit_mode import AuditMode
from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.quota import QuotaTable, TenantQuota
from cache_store.redis_index import RedisIndexReader
from cache_store.redis_registry import RedisRegistryReader
from cache_store.redis_session import RedisSession
from cache_store.tokens import pack
from cache_store.usage import AuditCounts
from services.cluster.valkey import EmbeddedValkey
from tests.support.worker_host import client_of, digest_config, digest_domain, running_workers
from worker.build import connect_stores
from worker.engine import Engine
from worker.host import WorkerHost

PROMPT = list(range(1, 101))
NUM_BLOCKS = len(PROMPT) // 16
ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")
ALL = QuotaTable(1, MappingProxyType({domain.tenant: TenantQuota(audit_share=1.0) for domain in (ACME, GLOBEX)}))


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s, "did not come true"
        await asyncio.sleep(0.02)


class View:
    """What a router sees of one worker."""

    def __init__(self, url: str, host: WorkerHost) -> None:
        self.session = RedisSession(url)
        self._index = RedisIndexReader(self.session, deadline_s=5.0)
        self._registry = RedisRegistryReader(self.session)
        self._host = host

    async def num_found(self, domain: Domain) -> int:
        digests = b"".join(chain(domain, pack(PROMPT), 16))
        return (await self._index.lookup(domain.tag, digests, [self._host.incarnation]))[self._host.incarnation]

    async def audit(self) -> AuditCounts:
        records = await self._registry.workers()
        return next(record.load.audit for record in records if record.incarnation == self._host.incarnation)


def damage(engine: Engine) -> None:
    """Flips a bit in the third block of ACME's prompt."""
    block = engine._pool.audit.standing(ACME, pack(PROMPT), len(PROMPT))[2]
    engine._runner.pools[0][block.slots[0], 5, 0] ^= 1 << 3  # type: ignore[attr-defined] - the digest runner's


async def test_damage_is_found_told_and_gone_from_the_index(valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-audit", valkey.urls.worker)
    async with running_workers([config], connect_stores) as [host], client_of(host) as client:
        view = View(valkey.urls.router, host)
        await host.thread.call(lambda engine: engine.set_quotas(ALL), 5.0)
        for domain in (ACME, GLOBEX):
            await client.execute(domain, PROMPT)

        async def all_found() -> bool:
            return await view.num_found(ACME) == await view.num_found(GLOBEX) == NUM_BLOCKS

        await until(all_found)
        await host.thread.call(damage, 5.0)
        assert (await client.execute(ACME, PROMPT)).cached_tokens == 16 * NUM_BLOCKS

        async def is_told() -> bool:
            return (await view.audit()).mismatches == 1

        await until(is_told)
        assert (await view.audit()).checked_blocks == 3

        async def is_gone() -> bool:
            return await view.num_found(ACME) == 2

        await until(is_gone)
        assert await view.num_found(GLOBEX) == NUM_BLOCKS
        again = await client.execute(ACME, PROMPT)
        assert again.cached_tokens == 32
        other = await client.execute(GLOBEX, PROMPT)
        assert other.cached_tokens == 16 * NUM_BLOCKS
        assert again.tokens == other.tokens
        await view.session.close()


async def test_a_paranoid_worker_hits_nothing_and_compares_everything(valkey: EmbeddedValkey) -> None:
    config = digest_config("worker-paranoid", valkey.urls.worker, audit=AuditMode.PARANOID)
    async with running_workers([config], connect_stores) as [host], client_of(host) as client:
        view = View(valkey.urls.router, host)
        first = await client.execute(ACME, PROMPT)
        await host.thread.call(damage, 5.0)
        again = await client.execute(ACME, PROMPT)
        assert (first.cached_tokens, again.cached_tokens) == (0, 0)
        assert again.tokens == first.tokens

        async def is_told() -> bool:
            return (await view.audit()).mismatches == 1

        await until(is_told)
        await view.session.close()
