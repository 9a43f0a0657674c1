"""What every index does, whatever keeps it: memory, Valkey or Redis."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_store.clock import SystemClock
from cache_store.departures import Departures
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexReader, IndexUnavailableError, IndexWriter
from cache_store.memory_index import MemoryIndex
from cache_store.redis_index import RedisIndexReader, RedisIndexWriter
from cache_store.redis_replica import ReplicaIndexReader
from cache_store.redis_session import RedisSession
from services.cluster.redis_roles import RedisRole
from tests.simulation.store import Store
from tests.simulation.store_server import StoreSession
from tests.support.redis_servers import server_named

ACME = DomainTag(b"A" * 16)
GLOBEX = DomainTag(b"G" * 16)
ONE = Incarnation("1" * 32)
TWO = Incarnation("2" * 32)


@dataclass(frozen=True)
class Index:
    """Both sides of one index."""

    reader: IndexReader
    writer: IndexWriter


class FollowingReader:
    """A replica's reader that has read all there is before each lookup. The script may answer only the first time."""

    def __init__(self, session: RedisSession, script: IndexReader) -> None:
        self._live = {ONE, TWO}
        self._replica = ReplicaIndexReader(
            session, script, lambda: self._live, SystemClock(), Departures(SystemClock())
        )

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        self._live.update(incarnations)
        for _ in range(3):  # what is gone is believed at the second look, and the third begins anew
            await self._replica.poll()
        first = await self._replica.lookup(domain_tag, digests, incarnations)
        for incarnation in incarnations:
            await self._replica.load(domain_tag, incarnation)
        assert all(self._replica.replica.knows(domain_tag, incarnation) for incarnation in incarnations)
        assert await self._replica.lookup(domain_tag, digests, incarnations) == first
        self._replica.replica.check_invariants()
        return first


@pytest.fixture(params=["memory", "valkey", "redis", "replica", "simulated", "simulated replica"])
async def index(request: pytest.FixtureRequest) -> AsyncIterator[Index]:
    if request.param == "memory":
        memory = MemoryIndex()
        yield Index(memory, memory)
        return
    if request.param.startswith("simulated"):
        session = StoreSession(Store(lambda: round(SystemClock().unix_s() * 1000), random.Random(0)))
        script = RedisIndexReader(session)
        followed = FollowingReader(session, script) if request.param.endswith("replica") else script
        yield Index(followed, RedisIndexWriter(session))
        return
    is_replica = request.param == "replica"
    server = server_named(request, "valkey" if is_replica else request.param)
    async with server.session(RedisRole.ROUTER) as reading, server.session(RedisRole.WORKER) as writing:
        reader: IndexReader = RedisIndexReader(reading, deadline_s=5.0)
        if is_replica:
            reader = FollowingReader(reading, reader)
        yield Index(reader, RedisIndexWriter(writing, deadline_s=5.0))


def digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def chain(*names: str) -> bytes:
    """Packed digests of a chain; equal beginnings give equal digests."""
    return b"".join(digest("/".join(names[: depth + 1])) for depth in range(len(names)))


def numbered(num_blocks: int) -> bytes:
    """The beginning of one endless chain."""
    return b"".join(digest(f"block {number}") for number in range(num_blocks))


def stored(tag: DomainTag, number: int, digests: bytes) -> BlockEvent:
    return BlockEvent(tag, number, BlockChange.STORED, digests)


def removed(tag: DomainTag, number: int, digests: bytes) -> BlockEvent:
    return BlockEvent(tag, number, BlockChange.REMOVED, digests)


def cleared(tag: DomainTag, number: int) -> BlockEvent:
    return BlockEvent(tag, number, BlockChange.CLEARED, b"")


async def test_nothing_is_held_at_first(index: Index) -> None:
    assert await index.reader.lookup(ACME, numbered(3), [ONE, TWO]) == {ONE: 0, TWO: 0}


async def test_no_digests_and_no_incarnations_are_answered(index: Index) -> None:
    assert await index.reader.lookup(ACME, b"", [ONE]) == {ONE: 0}
    assert await index.reader.lookup(ACME, numbered(1), []) == {}


@pytest.mark.parametrize("held", range(9))
@pytest.mark.parametrize("asked", [1, 2, 7, 8])
async def test_the_leading_blocks_are_counted(index: Index, held: int, asked: int) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(held))])
    assert await index.reader.lookup(ACME, numbered(asked), [ONE]) == {ONE: min(held, asked)}


async def test_a_domain_sees_its_own_blocks_and_no_other_domain_does(index: Index) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(4))])
    assert await index.reader.lookup(ACME, numbered(4), [ONE]) == {ONE: 4}
    assert await index.reader.lookup(GLOBEX, numbered(4), [ONE]) == {ONE: 0}


async def test_each_incarnation_has_its_own_count(index: Index) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(4))])
    await index.writer.apply(TWO, [stored(ACME, 1, numbered(2))])
    assert await index.reader.lookup(ACME, numbered(5), [TWO, ONE]) == {ONE: 4, TWO: 2}


async def test_a_chain_that_branches_off_counts_to_the_branch(index: Index) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, chain("system", "question", "answer"))])
    assert await index.reader.lookup(ACME, chain("system", "other", "answer"), [ONE]) == {ONE: 1}


async def test_removed_blocks_are_gone(index: Index) -> None:
    blocks = numbered(4)
    await index.writer.apply(ONE, [stored(ACME, 1, blocks)])
    await index.writer.apply(ONE, [removed(ACME, 2, blocks[48:] + blocks[32:48])])
    assert await index.reader.lookup(ACME, blocks, [ONE]) == {ONE: 2}


async def test_a_cleared_domain_is_gone_and_others_and_other_incarnations_keep_theirs(index: Index) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(3_000)), stored(GLOBEX, 2, numbered(4))])
    await index.writer.apply(TWO, [stored(ACME, 1, numbered(3))])
    await index.writer.apply(ONE, [cleared(ACME, 3)])
    assert await index.reader.lookup(ACME, numbered(5), [ONE, TWO]) == {ONE: 0, TWO: 3}
    assert await index.reader.lookup(GLOBEX, numbered(5), [ONE]) == {ONE: 4}


async def test_a_cleared_domain_can_be_filled_again(index: Index) -> None:
    await index.writer.apply(
        ONE, [stored(ACME, 1, numbered(4)), cleared(ACME, 2), cleared(ACME, 3), stored(ACME, 4, numbered(2))]
    )
    assert await index.reader.lookup(ACME, numbered(4), [ONE]) == {ONE: 2}
    await index.writer.apply(ONE, [stored(ACME, 5, numbered(4)[32:])])
    assert await index.reader.lookup(ACME, numbered(4), [ONE]) == {ONE: 4}


async def test_events_are_written_in_their_order(index: Index) -> None:
    last = numbered(2)[16:]
    await index.writer.apply(
        ONE, [stored(ACME, 1, numbered(2)), removed(ACME, 2, last), stored(ACME, 3, last), removed(ACME, 4, last)]
    )
    assert await index.reader.lookup(ACME, numbered(2), [ONE]) == {ONE: 1}


async def test_events_that_come_again_change_nothing(index: Index) -> None:
    events = [stored(ACME, 1, numbered(3)), removed(ACME, 2, numbered(3)[32:])]
    await index.writer.apply(ONE, events)
    await index.writer.apply(ONE, events[:1])
    assert await index.reader.lookup(ACME, numbered(3), [ONE]) == {ONE: 2}
    await index.writer.apply(ONE, events)
    assert await index.reader.lookup(ACME, numbered(3), [ONE]) == {ONE: 2}


async def test_lost_events_are_noticed_and_a_replacement_heals(index: Index) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(1))])
    with pytest.raises(IndexUnavailableError, match="events 2 to 4 are missing"):
        await index.writer.apply(ONE, [stored(ACME, 5, numbered(2))])
    with pytest.raises(IndexUnavailableError, match="replace"):
        await index.writer.apply(ONE, [stored(ACME, 2, numbered(2))])
    await index.writer.replace(ONE, {ACME: numbered(5)})
    await index.writer.apply(ONE, [stored(ACME, 9, numbered(6))])
    assert await index.reader.lookup(ACME, numbered(9), [ONE]) == {ONE: 6}


async def test_a_replacement_is_all_that_is_left(index: Index) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(4)), stored(GLOBEX, 2, numbered(4))])
    await index.writer.replace(ONE, {ACME: chain("new", "blocks")})
    assert await index.reader.lookup(ACME, numbered(4), [ONE]) == {ONE: 0}
    assert await index.reader.lookup(GLOBEX, numbered(4), [ONE]) == {ONE: 0}
    assert await index.reader.lookup(ACME, chain("new", "blocks"), [ONE]) == {ONE: 2}


async def test_a_replacement_by_nothing_empties(index: Index) -> None:
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(4))])
    await index.writer.replace(ONE, {})
    assert await index.reader.lookup(ACME, numbered(4), [ONE]) == {ONE: 0}


async def test_a_dropped_incarnation_is_forgotten_and_others_are_not(index: Index) -> None:
    for incarnation in (ONE, TWO):
        await index.writer.apply(incarnation, [stored(ACME, 1, numbered(4)), stored(GLOBEX, 2, numbered(3))])
    await index.writer.drop(ONE)
    assert await index.reader.lookup(ACME, numbered(4), [ONE, TWO]) == {ONE: 0, TWO: 4}
    assert await index.reader.lookup(GLOBEX, numbered(4), [ONE, TWO]) == {ONE: 0, TWO: 3}
    await index.writer.drop(ONE)
    await index.writer.apply(ONE, [stored(ACME, 1, numbered(2))])
    assert await index.reader.lookup(ACME, numbered(4), [ONE, TWO]) == {ONE: 2, TWO: 4}


async def test_more_than_fits_into_one_command_or_pipeline_arrives_whole(index: Index) -> None:
    blocks = numbered(20_000)
    await index.writer.apply(ONE, [stored(ACME, 1, blocks)])
    assert await index.reader.lookup(ACME, blocks, [ONE]) == {ONE: 20_000}
    backwards = b"".join(blocks[at : at + 16] for at in range(len(blocks) - 16, 15, -16))
    await index.writer.apply(ONE, [removed(ACME, 2, backwards)])
    assert await index.reader.lookup(ACME, blocks, [ONE]) == {ONE: 1}
    await index.writer.replace(ONE, {ACME: blocks})
    assert await index.reader.lookup(ACME, blocks, [ONE]) == {ONE: 20_000}


NAMES = st.lists(st.sampled_from("ab"), min_size=1, max_size=5).map(tuple)
"""A path in a tree of blocks; a block's ancestors are the beginnings of its path."""
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "remove", "clear", "replace", "drop"]),
        st.sampled_from([0, 1]),
        st.sampled_from([0, 1]),
        NAMES,
    ),
    max_size=25,
)
_fresh = itertools.count()


class Model:
    """Per (incarnation, domain) the set of paths held, closed under taking beginnings."""

    def __init__(self, incarnations: Sequence[Incarnation], tags: Sequence[DomainTag]) -> None:
        self.held: dict[tuple[Incarnation, DomainTag], set[tuple[str, ...]]] = {
            (incarnation, tag): set() for incarnation in incarnations for tag in tags
        }

    def store(self, incarnation: Incarnation, tag: DomainTag, path: tuple[str, ...]) -> bytes:
        """Holds `path`; returns what was new, parent first."""
        held = self.held[incarnation, tag]
        new = [path[:depth] for depth in range(1, len(path) + 1) if path[:depth] not in held]
        held.update(new)
        return b"".join(digest("/".join(one)) for one in new)

    def remove(self, incarnation: Incarnation, tag: DomainTag, path: tuple[str, ...]) -> bytes:
        """Removes `path` and what is below; returns what was removed, child first."""
        held = self.held[incarnation, tag]
        gone = sorted((one for one in held if one[: len(path)] == path), key=len, reverse=True)
        held.difference_update(gone)
        return b"".join(digest("/".join(one)) for one in gone)

    def clear(self, incarnation: Incarnation) -> None:
        for (owner, _), held in self.held.items():
            if owner == incarnation:
                held.clear()

    def count(self, incarnation: Incarnation, tag: DomainTag, path: tuple[str, ...]) -> int:
        held = self.held[incarnation, tag]
        return sum(path[:depth] in held for depth in range(1, len(path) + 1))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
async def test_it_agrees_with_a_naive_model(
    index: Index, operations: list[tuple[str, int, int, tuple[str, ...]]]
) -> None:
    example = next(_fresh)
    incarnations = [Incarnation(f"{example:031x}{number}") for number in (0, 1)]
    tags = [ACME, GLOBEX]
    model = Model(incarnations, tags)
    numbers = {incarnation: itertools.count(1) for incarnation in incarnations}
    for operation, which_incarnation, which_tag, path in operations:
        incarnation, tag = incarnations[which_incarnation], tags[which_tag]
        if operation == "store":
            event = stored(tag, next(numbers[incarnation]), model.store(incarnation, tag, path))
            await index.writer.apply(incarnation, [event])
        elif operation == "remove":
            event = removed(tag, next(numbers[incarnation]), model.remove(incarnation, tag, path))
            await index.writer.apply(incarnation, [event])
        elif operation == "clear":
            model.held[incarnation, tag].clear()
            await index.writer.apply(incarnation, [cleared(tag, next(numbers[incarnation]))])
        elif operation == "replace":
            model.clear(incarnation)
            await index.writer.replace(incarnation, {tag: model.store(incarnation, tag, path)})
        else:
            model.clear(incarnation)
            await index.writer.drop(incarnation)
    for tag in tags:
        for asked in itertools.product("ab", repeat=5):
            found = await index.reader.lookup(tag, chain(*asked), incarnations)
            assert found == {incarnation: model.count(incarnation, tag, asked) for incarnation in incarnations}
