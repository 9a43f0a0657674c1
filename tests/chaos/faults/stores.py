"""Faults of the store: away, empty, back from an old dump, silent, and without its users.

All take one course. Before it: a copy of the store is put by, then a key is revoked, a quota changed and a partition
purged, so that whatever comes back old would show. During it requests go on. After it everything is as it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.client.admin_requests import TenantTerms
from services.client.async_client import AsyncStemcacheClient
from services.client.errors import ApiError, ApiUnauthenticatedError
from services.client.purge_scope import PurgePartition
from services.client.requests import Tokens
from services.tenants.directory import CONTROL_AGE_BOUND_S
from services.tenants.table import ControlTable
from tests.chaos.cluster import Cluster, Layout, running_cluster
from tests.chaos.faults.course import Extent, hit_rate, until_flowing, until_recovered
from tests.chaos.load import Load, Shape
from tests.chaos.outcome import Outcome
from tests.chaos.store import Store

SHAPE = Shape(num_streams=24, max_tokens=20)
AWAY_S = 14.0
"""Longer than control data are trusted."""
SHORT_S = 3.0
"""Longer than a stream takes: streams that go in step would let a shorter time pass without a new one."""
BACK_WITHIN_S = 60.0
KEPT = 0.9
"""Part of the hits of before that has to be back."""
NUM_PROMPTS = 8

Step = Callable[[Store], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StoreFault:
    """One of them."""

    name: str
    hurt: Step
    mend: Step
    away_s: float = AWAY_S


async def _kill(store: Store) -> None:
    await store.kill()


async def _start(store: Store) -> None:
    await store.start()


async def _start_empty(store: Store) -> None:
    store.lose_data()
    await store.start()


async def _start_old(store: Store) -> None:
    store.go_back()
    await store.start()


async def _pause(store: Store) -> None:
    store.pause()


async def _go_on(store: Store) -> None:
    store.go_on()


async def _remove_users(store: Store) -> None:
    await store.remove_users()


async def _restore_users(store: Store) -> None:
    await store.restore_users()


STOPPED = StoreFault("Valkey stopped", _kill, _start)
EMPTIED = StoreFault("Valkey restarted empty", _kill, _start_empty, SHORT_S)
OLD_DUMP = StoreFault("Valkey restarted from an old dump", _kill, _start_old, SHORT_S)
PAUSED = StoreFault("Valkey paused 10 s", _pause, _go_on, 10.0)
NO_USERS = StoreFault("Valkey's users removed", _remove_users, _restore_users)


@dataclass(frozen=True, slots=True)
class _Past:
    """What must not be undone."""

    revoked: str
    """A key."""
    purged: tuple[Tokens, ...]
    kept: tuple[Tokens, ...]
    control: ControlTable


def course_of(fault: StoreFault) -> Callable[[Path, Extent], Awaitable[Outcome]]:
    """A run of it."""

    async def run(folder: Path, extent: Extent) -> Outcome:
        outcome = Outcome(fault.name, "in flight when it happened")
        async with running_cluster(folder, Layout(worker_told={"digest_step_s": 0.08})) as cluster:
            load = cluster.load(SHAPE)
            async with load.running():
                await until_flowing(load, 32)
                past = await _make_past(cluster)
                await asyncio.sleep(4.0 if extent is Extent.WHOLE else 1.0)
                await _hit(fault, cluster, load, past, outcome)
            await _check_past(cluster, past, outcome)
            outcome.count(load)
            outcome.claim("no request failed, early or late", not outcome.errors)
            await cluster.until_idle()
        return outcome

    return run


async def _hit(fault: StoreFault, cluster: Cluster, load: Load, past: _Past, outcome: Outcome) -> None:
    started = [each for each in load.streams if each.begun_s is not None]
    before = hit_rate(load, started[-60:])
    hit_s = time.time()
    outcome.in_phase = sum(each.is_waiting(hit_s) or each.is_streaming(hit_s) for each in load.streams)
    async with _knocking(cluster, past.revoked) as refusals:
        await fault.hurt(cluster.store)
        await asyncio.sleep(fault.away_s)
        mended_s = time.time()
        await fault.mend(cluster.store)
        found = await until_recovered(load, mended_s, KEPT * before, BACK_WITHIN_S)
        await asyncio.sleep(2.0)
    outcome.claim(f"a revoked key was refused all the time ({refusals.num_refused} tries)", refusals.held)
    outcome.claim(f"hits are back at {KEPT:.0%} of {before:.2f} within {BACK_WITHIN_S:.0f} s", found is not None)
    outcome.recovery_s = time.time() - mended_s if found is None else found
    outcome.recovered_when = "hits are back, counted from its return"
    served = [each for each in load.streams if hit_s <= each.sent_s < mended_s]
    outcome.claim(f"{len(served)} requests were sent while it was away", served)
    late = [each for each in served if each.sent_s > hit_s + CONTROL_AGE_BOUND_S + 1.5 and each.tokens]
    if late:
        cached = [each for each in late if each.cached_tokens or not each.degraded]
        outcome.claim(f"past the bound {len(late)} requests were served, none with reuse", not cached)


@dataclass
class _Refusals:
    num_refused: int = 0
    num_let_in: int = 0
    """Or answered in another way than by refusing."""

    @property
    def held(self) -> bool:
        return self.num_refused > 0 and self.num_let_in == 0


@asynccontextmanager
async def _knocking(cluster: Cluster, key: str) -> AsyncIterator[_Refusals]:
    """Tries a key that opens nothing at every router, again and again."""
    refusals = _Refusals()

    async def knock(address: str) -> None:
        async with AsyncStemcacheClient(address, key) as client:
            while True:
                try:
                    await client.models()
                    refusals.num_let_in += 1
                except ApiUnauthenticatedError:
                    refusals.num_refused += 1
                except ApiError:
                    refusals.num_let_in += 1
                await asyncio.sleep(0.3)

    tasks = [asyncio.create_task(knock(router.address)) for router in cluster.routers.values()]
    try:
        yield refusals
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _make_past(cluster: Cluster) -> _Past:
    """Puts a copy of the store by, then changes what the copy does not know."""
    prompts = [Tokens(tuple(range(100 * at + 1, 100 * at + 97))) for at in range(1, 2 * NUM_PROMPTS + 1)]
    purged, kept = tuple(prompts[:NUM_PROMPTS]), tuple(prompts[NUM_PROMPTS:])
    router = next(iter(cluster.routers.values()))
    async with AsyncStemcacheClient(router.address, cluster.keys["globex"]) as client:
        for prompt in purged:
            await client.cache.warm(prompt, partition="purged")
        for prompt in kept:
            await client.cache.warm(prompt, partition="kept")
        revoked = await asyncio.to_thread(_make_key, cluster)
        await asyncio.sleep(0.7)
        cluster.store.keep_dump()
        await client.cache.purge(PurgePartition("purged"))
    await asyncio.to_thread(_change, cluster, revoked)
    await asyncio.sleep(1.5)  # both routers poll twice a second, and publish
    return _Past(revoked[1], purged, kept, await cluster.store.control())


def _make_key(cluster: Cluster) -> tuple[str, str]:
    with next(iter(cluster.routers.values())).admin() as admin:
        made = admin.create_api_key("acme")
        return made.key.key_id, made.secret


def _change(cluster: Cluster, key: tuple[str, str]) -> None:
    with next(iter(cluster.routers.values())).admin() as admin:
        admin.revoke_api_key(key[0])
        admin.set_quota("globex", TenantTerms(min=0.25, weight=3.0))


async def _check_past(cluster: Cluster, past: _Past, outcome: Outcome) -> None:
    """Tenants, keys, quotas and epochs are as they were; what was purged is gone, what was not is there."""
    outcome.claim(
        "tenants, keys, quotas and epochs are stored as they were", await cluster.store.control() == past.control
    )
    for router in cluster.routers.values():
        degraded = (await router.status()).degraded
        outcome.claim(f"{router.child.name} is not degraded", not degraded)
    router = next(iter(cluster.routers.values()))
    async with AsyncStemcacheClient(router.address, cluster.keys["globex"]) as client:
        revived = sum([(await client.cache.warm(prompt, partition="purged")).cached_tokens for prompt in past.purged])
        kept = [(await client.cache.warm(prompt, partition="kept")).cached_tokens for prompt in past.kept]
    outcome.claim("nothing that was purged is found", revived == 0)
    outcome.claim(
        f"what was not purged is found ({sum(map(bool, kept))} of {len(kept)})", sum(map(bool, kept)) >= 0.9 * len(kept)
    )
