"""Time of a lookup: by script, in a router's copy, and beside PING and one HMGET per block.

Each round makes every kind of call once, in a new order, over one connection, after a warm-up. The server's time is the
difference of INFO commandstats over as many calls again, per call; the client's is the wall time of the whole call. The
other layout that one could choose is a hash per block with a field per worker, asked for by a pipeline of HMGET.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from cache_store.clock import SystemClock
from cache_store.departures import Departures
from cache_store.digest import DIGEST_BYTES
from cache_store.index_replica import IndexReplica, each
from cache_store.redis_index import RedisIndexReader
from cache_store.redis_replica import ReplicaIndexReader
from cache_store.redis_session import Command, RedisSession
from services.cluster.redis_roles import RoleUrls
from tests.bench.index.server import server_us
from tests.bench.index.stored import DEADLINE_S, TAG, Chain, fill, incarnations
from tests.bench.percentiles import percentile

PING, SCRIPT, COPY, HMGET = "PING", "script", "copy", "HMGET per block"
HMGET_BLOCKS = 512
_WARM_UP_ROUNDS = 20
_LOAD_TRIES = 20
"""On a busy machine the server may not answer a load in time."""
_COMMANDS = {PING: ("ping",), SCRIPT: ("evalsha_ro",), COPY: (), HMGET: ("hmget",)}


@dataclass(slots=True)
class Case:
    """One kind of call and what was measured of it."""

    kind: str
    chain: str
    """Its name; empty: none."""
    num_blocks: int
    call: Callable[[], Awaitable[object]]
    expected: object
    walls_us: list[float] = field(default_factory=list)
    server_us: float = 0.0

    async def once(self) -> None:
        """Calls, and checks the answer."""
        start = time.perf_counter()
        found = await self.call()
        self.walls_us.append((time.perf_counter() - start) * 1e6)
        assert found == self.expected, f"{self.kind}, {self.chain}: another answer than expected"

    def wall_us(self, share: float = 0.5) -> float:
        """Percentile of the client's time."""
        return percentile(self.walls_us, share)


class _Standing(SystemClock):
    """Time stands still, so that the copy counts as current."""

    def monotonic_s(self) -> float:
        return 0.0


async def measure(
    urls: RoleUrls, chains: Sequence[Chain], num_workers: int, num_blocks: int, num_rounds: int
) -> list[Case]:
    """Fills an empty server and measures every chain; PING comes first."""
    await fill(urls.worker, chains, num_workers, num_blocks)
    session = RedisSession(urls.router)
    cases = [Case(PING, "", 0, lambda: session.call(("PING",), DEADLINE_S), b"PONG")]
    cases += await _lookups(session, chains, num_workers)
    cases += await _hmgets(urls, session, chains, num_workers)
    for _ in range(_WARM_UP_ROUNDS):
        for case in cases:
            await case.once()
    for case in cases:
        case.walls_us.clear()
    order = random.Random(0)
    for kinds in ((PING, SCRIPT, HMGET), (COPY,)):  # the copy by itself, as its peer: without Redis in between
        asked = [case for case in cases if case.kind in kinds]
        for _ in range(num_rounds):
            for case in order.sample(asked, len(asked)):  # so that none always follows the long one
                await case.once()
    for case in cases:
        if commands := _COMMANDS[case.kind]:
            before = await server_us(session, *commands)
            for _ in range(num_rounds):
                await case.call()
            case.server_us = (await server_us(session, *commands) - before) / num_rounds
    await session.close()
    return cases


async def _lookups(session: RedisSession, chains: Sequence[Chain], num_workers: int) -> list[Case]:
    workers = incarnations(num_workers)
    reader, clock = RedisIndexReader(session, DEADLINE_S), _Standing()
    bound = IndexReplica(max_digests=4_000_000)  # so that one domain may have all of a million
    copy = ReplicaIndexReader(session, reader, lambda: workers, clock, Departures(clock), bound)
    await copy.poll()
    for incarnation in workers:
        for _ in range(_LOAD_TRIES):
            await copy.load(TAG, incarnation)
            if copy.replica.knows(TAG, incarnation):
                break
        assert copy.replica.knows(TAG, incarnation), "the server is too slow for a copy"
    made = []
    for chain in chains:
        expected = dict(zip(workers, chain.depths, strict=True))
        for kind, asked in ((SCRIPT, reader), (COPY, copy)):
            call = lambda chain=chain, asked=asked: asked.lookup(TAG, chain.digests, workers)  # noqa: E731 - bound now
            made.append(Case(kind, chain.name, chain.num_blocks, call, expected))
    return made


async def _hmgets(urls: RoleUrls, session: RedisSession, chains: Sequence[Chain], num_workers: int) -> list[Case]:
    chain = next((chain for chain in chains if chain.num_blocks == HMGET_BLOCKS), None)
    if chain is None:
        return []
    workers, operator = incarnations(num_workers), RedisSession(urls.operator)
    blocks = list(each(chain.digests))
    commands: list[Command] = []
    for at, digest in enumerate(blocks):
        holders = [name for name, depth in zip(workers, chain.depths, strict=True) if at < depth]
        commands += [("HSET", _block_key(digest), holder, 1) for holder in holders]
    for start in range(0, len(commands), 500):
        await operator.pipeline(commands[start : start + 500], DEADLINE_S)
    await operator.close()
    asked: list[Command] = [("HMGET", _block_key(digest), *workers) for digest in blocks]
    expected = [[b"1" if at < depth else None for depth in chain.depths] for at in range(len(blocks))]
    return [Case(HMGET, chain.name, chain.num_blocks, lambda: session.pipeline(asked, DEADLINE_S), expected)]


def _block_key(digest: bytes) -> str:
    assert len(digest) == DIGEST_BYTES
    return f"sc:{{{TAG.hex()}}}:block:{digest.hex()}"
