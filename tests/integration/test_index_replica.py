"""The copy of the index on a real store: it follows, notices what it missed, and asks the script where in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from cache_store.clock import ManualClock
from cache_store.departures import Departures
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexReader, IndexUnavailableError
from cache_store.index_replica import IndexReplica
from cache_store.redis_index import MAX_STREAM_ENTRIES, RedisIndexReader, RedisIndexWriter
from cache_store.redis_keys import changes_key
from cache_store.redis_replica import FRESH_S, MAX_ENTRIES_PER_POLL, ReplicaIndexReader
from cache_store.redis_session import RedisSession
from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer, server_named

TAG = DomainTag(b"T" * 16)
ONE, TWO = Incarnation("1" * 32), Incarnation("2" * 32)
BLOCKS = [number.to_bytes(16, "big") for number in range(2_000)]


def packed(num_blocks: int, first: int = 0) -> bytes:
    return b"".join(BLOCKS[first:num_blocks])


class CountingReader:
    """The script, and how often it was asked."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self.num_calls = 0

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        self.num_calls += 1
        return await self._reader.lookup(domain_tag, digests, incarnations)


@dataclass
class Bench:
    server: RedisServer
    reading: RedisSession
    writer: RedisIndexWriter
    script: CountingReader
    clock: ManualClock
    departures: Departures
    replica: ReplicaIndexReader
    number: int = 0

    async def store(self, num_blocks: int, first: int = 0, incarnation: Incarnation = ONE) -> None:
        self.number += 1
        event = BlockEvent(TAG, self.number, BlockChange.STORED, packed(num_blocks, first))
        await self.writer.apply(incarnation, [event])

    async def ask(self, num_blocks: int = 8) -> tuple[int, bool]:
        """What ONE holds, and whether the script was asked."""
        before = self.script.num_calls
        found = await self.replica.lookup(TAG, packed(num_blocks), [ONE])
        return found[ONE], self.script.num_calls > before

    async def follow(self) -> None:
        """From here on the copy answers."""
        await self.replica.poll()
        await self.replica.load(TAG, ONE)


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    server = server_named(request, "valkey")
    server.wipe()
    clock = ManualClock()
    async with server.session(RedisRole.ROUTER) as reading, server.session(RedisRole.WORKER) as writing:
        departures = Departures(clock)
        script = CountingReader(RedisIndexReader(reading, deadline_s=5.0))
        replica = ReplicaIndexReader(reading, script, lambda: (ONE, TWO), clock, departures)
        yield Bench(server, reading, RedisIndexWriter(writing, deadline_s=5.0), script, clock, departures, replica)


async def test_after_the_first_lookup_the_script_is_not_asked_any_more(bench: Bench) -> None:
    await bench.store(3)
    assert await bench.ask() == (3, True)
    await bench.follow()
    assert await bench.ask() == (3, False)
    await bench.store(5, first=3)
    await bench.replica.poll()
    assert await bench.ask() == (5, False)
    assert bench.replica.stats.num_followed == 2


async def test_what_left_is_remembered_for_explanations(bench: Bench) -> None:
    await bench.store(3)
    await bench.follow()
    bench.number += 1
    await bench.writer.apply(ONE, [BlockEvent(TAG, bench.number, BlockChange.REMOVED, packed(3, first=2))])
    await bench.replica.poll()
    bench.clock.advance(0.5)
    assert bench.departures.age_s(TAG, BLOCKS[2]) == 0.5
    assert bench.departures.age_s(TAG, BLOCKS[1]) is None


async def test_a_replacement_is_believed_at_once(bench: Bench) -> None:
    await bench.store(5)
    await bench.follow()
    await bench.writer.replace(ONE, {TAG: packed(2)})
    await bench.replica.poll()
    assert await bench.ask() == (2, True)
    await bench.follow()
    assert await bench.ask() == (2, False)


async def test_a_copy_that_was_not_polled_for_a_second_asks_the_script(bench: Bench) -> None:
    await bench.store(3)
    await bench.follow()
    bench.clock.advance(FRESH_S + 0.01)
    await bench.store(4, first=3)
    assert await bench.ask() == (4, True)


async def test_entries_that_were_trimmed_before_they_were_read_make_it_begin_anew(bench: Bench) -> None:
    await bench.store(1)
    await bench.follow()
    for number in range(1, 5):
        await bench.store(number + 1, first=number)
    async with bench.server.session(RedisRole.OPERATOR) as operator:
        await operator.call(("XTRIM", changes_key(ONE), "MAXLEN", 2), 5.0)
    await bench.replica.poll()
    assert bench.replica.stats.num_resyncs == 1
    assert await bench.ask() == (5, True)
    await bench.follow()
    assert await bench.ask() == (5, False)


async def test_a_store_that_lost_everything_is_noticed(bench: Bench) -> None:
    await bench.store(4)
    await bench.follow()
    bench.server.wipe()
    await bench.replica.poll()
    await bench.replica.poll()
    assert await bench.ask() == (0, True)


async def test_a_writer_without_a_stream_is_left_to_the_script(bench: Bench) -> None:
    await bench.store(4)
    bench.server.remove(changes_key(ONE))
    for _ in range(4):
        await bench.follow()
        assert await bench.ask() == (4, True)
    assert bench.replica.stats.num_resyncs == 0


async def test_a_stream_that_is_none_is_left_to_the_script(bench: Bench) -> None:
    await bench.store(4)
    await bench.follow()
    async with bench.server.session(RedisRole.OPERATOR) as operator:
        await operator.call(("XADD", changes_key(ONE), "*", "from", 1, "mark", 2, "events", b"nonsense"), 5.0)
    await bench.replica.poll()
    assert await bench.ask() == (4, True)


async def test_more_than_one_portion_is_read_in_one_poll(bench: Bench) -> None:
    await bench.store(1)
    await bench.follow()
    num_blocks = MAX_ENTRIES_PER_POLL + 20
    assert num_blocks < MAX_STREAM_ENTRIES
    for number in range(1, num_blocks):
        await bench.store(number + 1, first=number)
    await bench.replica.poll()
    assert await bench.ask(num_blocks + 1) == (num_blocks, False)


async def test_large_domains_are_loaded_in_portions(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_store.redis_replica.LOAD_PORTION", 50)
    await bench.store(1_500)
    await bench.follow()
    assert await bench.ask(1_600) == (1_500, False)


async def test_a_domain_that_is_too_large_is_left_to_the_script(bench: Bench) -> None:
    replica = ReplicaIndexReader(
        bench.reading, bench.script, lambda: (ONE, TWO), bench.clock, bench.departures, IndexReplica(max_digests=100)
    )
    await bench.store(60)
    await replica.poll()
    await replica.load(TAG, ONE)
    assert (replica.stats.num_domains, replica.stats.num_digests) == (0, 0)
    assert await replica.lookup(TAG, packed(80), [ONE]) == {ONE: 60}


async def test_what_was_known_is_told_when_the_store_is_away(bench: Bench) -> None:
    await bench.store(3)
    await bench.follow()
    await bench.reading.close()
    assert await bench.ask() == (3, False)
    bench.clock.advance(FRESH_S + 0.01)
    await bench.replica.poll()
    with pytest.raises(IndexUnavailableError) as error:
        await bench.ask()
    assert error.value.known == {ONE: 3}


async def test_an_incarnation_that_is_gone_is_forgotten(bench: Bench) -> None:
    await bench.store(3)
    await bench.follow()
    assert bench.replica.replica.num_digests == 3
    live: set[Incarnation] = {TWO}
    other = ReplicaIndexReader(
        bench.reading, bench.script, lambda: live, bench.clock, bench.departures, bench.replica.replica
    )
    live.add(ONE)
    await other.poll()
    live.remove(ONE)
    await other.poll()
    assert bench.replica.replica.num_digests == 0


async def test_run_loads_what_was_asked_for_and_follows(bench: Bench) -> None:
    await bench.store(2)
    running = asyncio.create_task(bench.replica.run())
    try:
        async with asyncio.timeout(10):
            while (await bench.ask())[1]:
                await asyncio.sleep(0.02)
            await bench.store(6, first=2)
            while (await bench.ask())[0] != 6:
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
