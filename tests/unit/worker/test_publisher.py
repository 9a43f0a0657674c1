"""The publisher over stores in memory: nothing waits for them, nothing is lost that cannot be rebuilt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation
from cache_store.registry import SupersededError
from tests.support.memory_stores import MemoryStores
from tests.support.worker_host import digest_config
from tests.support.worker_records import worker_record
from worker.mirror import EventGapError, IndexMirror
from worker.publisher import MAX_WAITING, IndexState, Pace, Publisher

ACME, GLOBEX = DomainTag(b"a" * 16), DomainTag(b"g" * 16)
FAST = Pace(renew_s=0.01, probe_s=0.05, sweep_s=0.01)
RECORD = worker_record("worker-0", incarnation="1" * 32)
ME = RECORD.incarnation


def digests(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(DIGEST_BYTES, "big") for number in numbers)


class Told:
    """Events in their sequence."""

    def __init__(self) -> None:
        self._next = 0

    def stored(self, tag: DomainTag, *numbers: int) -> BlockEvent:
        return self._event(tag, BlockChange.STORED, numbers)

    def removed(self, tag: DomainTag, *numbers: int) -> BlockEvent:
        return self._event(tag, BlockChange.REMOVED, numbers)

    def cleared(self, tag: DomainTag) -> BlockEvent:
        return self._event(tag, BlockChange.CLEARED, ())

    def _event(self, tag: DomainTag, change: BlockChange, numbers: tuple[int, ...]) -> BlockEvent:
        self._next += 1
        return BlockEvent(tag, self._next - 1, change, digests(*numbers))


@asynccontextmanager
async def publishing(stores: MemoryStores, incarnation: str = ME) -> AsyncIterator[Publisher]:
    record = worker_record("worker-0", incarnation=incarnation)
    publisher = Publisher(stores.connect(digest_config()), lambda: record, FAST)
    running = asyncio.create_task(publisher.run())
    yield publisher
    running.cancel()
    await asyncio.wait((running,))


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true"
        await asyncio.sleep(0.005)


async def until_found(stores: MemoryStores, tag: DomainTag, chain: bytes, count: int) -> None:
    deadline_s = time.monotonic() + 10
    while (await stores.lookup(tag, chain, [ME]))[ME] != count:
        assert time.monotonic() < deadline_s, "the index never said so"
        await asyncio.sleep(0.005)


async def test_events_reach_the_index_and_the_lease_is_renewed() -> None:
    stores, told = MemoryStores(), Told()
    async with publishing(stores) as publisher:
        publisher.offer([told.stored(ACME, 1, 2, 3)])
        await until_found(stores, ACME, digests(1, 2, 3), 3)
        publisher.offer([told.removed(ACME, 3)])
        await until_found(stores, ACME, digests(1, 2, 3), 2)
        assert [record.worker_id for record in await stores.workers()] == ["worker-0"]
        assert (await stores.lookup(GLOBEX, digests(1), [ME]))[ME] == 0


async def test_what_happened_while_the_stores_were_away_is_there_when_they_are_back() -> None:
    stores, told = MemoryStores(), Told()
    async with publishing(stores) as publisher:
        publisher.offer([told.stored(ACME, 1)])
        await until_found(stores, ACME, digests(1), 1)
        stores.reachable = False
        publisher.offer([told.stored(ACME, 2), told.stored(GLOBEX, 7)])
        await until(lambda: publisher.index_state is IndexState.STALE)
        publisher.offer([told.removed(ACME, 2), told.stored(ACME, 3)])
        assert publisher.num_waiting == 0, "while the index is stale nothing piles up"
        stores.reachable = True
        await until_found(stores, ACME, digests(1, 3), 2)
        await until_found(stores, GLOBEX, digests(7), 1)
        assert (await stores.lookup(ACME, digests(2), [ME]))[ME] == 0


async def test_stores_that_came_back_empty_are_filled_again_without_new_events() -> None:
    stores, told = MemoryStores(), Told()
    async with publishing(stores) as publisher:
        publisher.offer([told.stored(ACME, 1, 2)])
        await until_found(stores, ACME, digests(1, 2), 2)
        stores.wipe()
        await until_found(stores, ACME, digests(1, 2), 2)


async def test_stores_away_at_the_start_are_found_later() -> None:
    stores, told = MemoryStores(), Told()
    stores.reachable = False
    async with publishing(stores) as publisher:
        publisher.offer([told.stored(ACME, 1)])
        await asyncio.sleep(0.02)
        stores.reachable = True
        await until_found(stores, ACME, digests(1), 1)


async def test_too_many_waiting_events_become_one_replacement() -> None:
    stores, told = MemoryStores(), Told()
    publisher = Publisher(stores.connect(digest_config()), lambda: RECORD, FAST)
    running = asyncio.create_task(publisher.run())
    await until(lambda: stores.num_replaced > 0)
    publisher.offer([told.stored(ACME, number) for number in range(MAX_WAITING + 1)])
    assert publisher.num_waiting == 0
    await until_found(stores, ACME, digests(*range(MAX_WAITING + 1)), MAX_WAITING + 1)
    running.cancel()
    await asyncio.wait((running,))


async def test_leaving_ends_lease_and_index_at_once() -> None:
    stores, told = MemoryStores(), Told()
    async with publishing(stores) as publisher:
        publisher.offer([told.stored(ACME, 1)])
        await until_found(stores, ACME, digests(1), 1)
    await publisher.leave()
    assert await stores.workers() == []
    assert (await stores.lookup(ACME, digests(1), [ME]))[ME] == 0


async def test_leaving_does_not_wait_for_stores_that_are_away() -> None:
    stores = MemoryStores()
    async with publishing(stores) as publisher:
        await until(lambda: stores.num_replaced > 0)
    stores.reachable = False
    await publisher.leave()


async def test_a_newer_incarnation_of_the_worker_ends_the_older_one() -> None:
    stores = MemoryStores()
    older = Publisher(stores.connect(digest_config()), lambda: RECORD, FAST)
    running = asyncio.create_task(older.run())
    await until(lambda: stores.num_replaced > 0)
    async with publishing(stores, incarnation="2" * 32):
        with pytest.raises(SupersededError):
            await asyncio.wait_for(running, 10)
        assert [record.incarnation for record in await stores.workers()] == [Incarnation("2" * 32)]


async def test_leftovers_of_dead_workers_are_swept_now_and_then() -> None:
    stores = MemoryStores()
    async with publishing(stores):
        await until(lambda: stores.num_sweeps >= 2)


def test_the_mirror_lists_parents_before_children_also_after_they_came_back() -> None:
    told, mirror = Told(), IndexMirror()
    mirror.apply(
        [told.stored(ACME, 1, 2, 3), told.stored(GLOBEX, 1), told.removed(ACME, 3, 2), told.stored(ACME, 2, 4)]
    )
    assert mirror.snapshot() == {ACME: digests(1, 2, 4), GLOBEX: digests(1)}
    assert mirror.num_blocks == 4
    mirror.apply([told.removed(GLOBEX, 1)])
    assert mirror.snapshot() == {ACME: digests(1, 2, 4)}


def test_the_mirror_forgets_a_cleared_domain_and_no_other() -> None:
    told, mirror = Told(), IndexMirror()
    mirror.apply([told.stored(ACME, 1, 2), told.stored(GLOBEX, 1), told.cleared(ACME), told.stored(ACME, 3)])
    assert mirror.snapshot() == {GLOBEX: digests(1), ACME: digests(3)}
    mirror.apply([told.cleared(ACME), told.cleared(ACME)])
    assert mirror.snapshot() == {GLOBEX: digests(1)}


def test_a_missing_event_is_noticed() -> None:
    told, mirror = Told(), IndexMirror()
    mirror.apply([told.stored(ACME, 1)])
    told.stored(ACME, 2)
    with pytest.raises(EventGapError):
        mirror.apply([told.stored(ACME, 3)])
