"""Time of one index lookup, by script and in a router's copy, beside PING and beside one HMGET per block.

A fresh embedded Valkey holds `--held` blocks of each of 8 workers. Each round makes every kind of call once, in a new
order, over one connection, after a warm-up. The server's time is the difference of INFO commandstats over as many calls
again, per call; the client's is the wall time of the whole call. The baseline is the other layout that one could
choose: a hash per block with a field per worker, asked for by a pipeline of HMGET in one round trip.

Then workers of several sizes add their blocks, and the memory that each took is told per block.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cache_store.clock import SystemClock
from cache_store.departures import Departures
from cache_store.domain import DomainTag
from cache_store.index import Incarnation
from cache_store.redis_index import RedisIndexReader, RedisIndexWriter
from cache_store.redis_replica import ReplicaIndexReader
from cache_store.redis_session import Command, RedisSession
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey

NUM_WORKERS = 8
NUM_BLOCKS = 512
WARM_UP_ROUNDS = 50
SIZES = tuple(int(20_000 * 1.18**step) for step in range(18))
"""Blocks of workers: memory for each goes in steps with the size of a set."""
DEADLINE_S = 10.0
TAG = DomainTag(b"benchmark domain")
INCARNATIONS = [Incarnation(f"{number:032x}") for number in range(NUM_WORKERS)]
CHAINS = {
    "no worker holds any": [0] * NUM_WORKERS,
    "workers hold 0, 73 ... 512": [number * NUM_BLOCKS // (NUM_WORKERS - 1) for number in range(NUM_WORKERS)],
    "every worker holds all": [NUM_BLOCKS] * NUM_WORKERS,
}
BASELINE = "workers hold 0, 73 ... 512"


@dataclass(slots=True)
class Case:
    """One kind of call and what was measured of it."""

    name: str
    command: str
    """As INFO commandstats names it; empty: the server is not asked."""
    call: Callable[[], Awaitable[object]]
    expected: object
    walls_us: list[float] = field(default_factory=list)
    server_us: float = 0.0

    async def once(self) -> None:
        start = time.perf_counter()
        found = await self.call()
        self.walls_us.append((time.perf_counter() - start) * 1e6)
        assert found == self.expected, f"{self.name}: another answer than expected"

    def row(self) -> str:
        cuts = statistics.quantiles(self.walls_us, n=100)
        walls = "".join(f"{cuts[percent - 1]:>10.0f}" for percent in (50, 95, 99))
        return f"{self.name:<44}{self.server_us:>12.1f}{walls}"


class _Standing(SystemClock):
    """Time stands still, so that the copy counts as current."""

    def monotonic_s(self) -> float:
        return 0.0


def digests(name: str, num_blocks: int) -> list[bytes]:
    """A chain of its own."""
    return [hashlib.blake2b(f"{name} {number}".encode(), digest_size=16).digest() for number in range(num_blocks)]


def block_key(digest: bytes) -> str:
    """Of the baseline's layout."""
    return f"sc:{{{TAG.hex()}}}:block:{digest.hex()}"


async def fill(urls: RoleUrls, num_held: int) -> None:
    """Each worker holds its part of every chain, and other blocks up to `num_held`."""
    session = RedisSession(urls.worker)
    writer = RedisIndexWriter(session, DEADLINE_S)
    for number, incarnation in enumerate(INCARNATIONS):
        parts = [block for name, lengths in CHAINS.items() for block in digests(name, lengths[number])]
        others = digests(f"worker {number}", max(0, num_held - len(parts)))
        await writer.replace(incarnation, {TAG: b"".join(parts + others)})
    await session.close()


async def fill_baseline(urls: RoleUrls) -> None:
    """The same chain as a hash per block."""
    session = RedisSession(urls.operator)
    lengths = CHAINS[BASELINE]
    commands: list[Command] = [
        ("HSET", block_key(digest), INCARNATIONS[number], 1)
        for depth, digest in enumerate(digests(BASELINE, NUM_BLOCKS))
        for number in range(NUM_WORKERS)
        if depth < lengths[number]
    ]
    for start in range(0, len(commands), 500):
        await session.pipeline(commands[start : start + 500], DEADLINE_S)
    await session.close()


async def cases(session: RedisSession) -> list[Case]:
    """PING, a lookup per chain by script and in the copy of a router, and the baseline."""
    reader = RedisIndexReader(session, DEADLINE_S)
    clock = _Standing()
    replica = ReplicaIndexReader(session, reader, lambda: INCARNATIONS, clock, Departures(clock))
    await replica.poll()
    for incarnation in INCARNATIONS:
        await replica.load(TAG, incarnation)
        assert replica.replica.knows(TAG, incarnation)
    made = [Case("PING", "ping", lambda: session.call(("PING",), DEADLINE_S), b"PONG")]
    for name, lengths in CHAINS.items():
        packed = b"".join(digests(name, NUM_BLOCKS))
        expected = dict(zip(INCARNATIONS, lengths, strict=True))
        for label, command, asked in (("lookup", "evalsha_ro", reader), ("copy", "", replica)):
            call = lambda packed=packed, asked=asked: asked.lookup(TAG, packed, INCARNATIONS)  # noqa: E731 - bound now
            made.append(Case(f"{label}, {name}", command, call, expected))
    lengths = CHAINS[BASELINE]
    commands: list[Command] = [("HMGET", block_key(digest), *INCARNATIONS) for digest in digests(BASELINE, NUM_BLOCKS)]
    fields = [[b"1" if depth < length else None for length in lengths] for depth in range(NUM_BLOCKS)]
    made.append(Case(f"HMGET, {BASELINE}", "hmget", lambda: session.pipeline(commands, DEADLINE_S), fields))
    return made


async def server_us(session: RedisSession, command: str) -> int:
    """Time that the server has spent in `command` so far."""
    text = await session.call(("INFO", "commandstats"), DEADLINE_S)
    assert isinstance(text, bytes)
    for line in text.decode().splitlines():
        if line.startswith(f"cmdstat_{command}:"):
            return int(line.split("usec=")[1].split(",")[0])
    return 0


async def measure(each: Case, session: RedisSession, num_rounds: int) -> None:
    """Server time of `num_rounds` calls, which are made apart from the timed rounds so that INFO disturbs none."""
    before = await server_us(session, each.command)
    for _ in range(num_rounds):
        await each.call()
    each.server_us = (await server_us(session, each.command) - before) / num_rounds


async def run(urls: RoleUrls, num_held: int, num_rounds: int) -> Sequence[Case]:
    """Fills, warms up, measures."""
    await fill(urls, num_held)
    await fill_baseline(urls)
    session = RedisSession(urls.router)
    made = await cases(session)
    for _ in range(WARM_UP_ROUNDS):
        for each in made:
            await each.once()
    for each in made:
        each.walls_us.clear()
    order = random.Random(0)
    for _ in range(num_rounds):
        for each in order.sample(made, len(made)):  # so that none always follows the long one
            await each.once()
    for each in made:
        if each.command:
            await measure(each, session, num_rounds)
    await session.close()
    return made


async def bytes_per_block(urls: RoleUrls) -> list[float]:
    """Memory for each block of a worker, of workers of SIZES blocks in one domain."""
    session, worker = RedisSession(urls.operator), RedisSession(urls.worker)
    writer = RedisIndexWriter(worker, DEADLINE_S)
    found = []
    for number, num_blocks in enumerate(SIZES):
        before = await used_memory(session)
        tag = DomainTag(f"memory {number}".encode())
        await writer.replace(
            Incarnation(f"{100 + number:032x}"), {tag: b"".join(digests(f"memory {number}", num_blocks))}
        )
        found.append((await used_memory(session) - before) / num_blocks)
    await session.close()
    await worker.close()
    return found


async def used_memory(session: RedisSession) -> int:
    """Bytes that the server has allocated."""
    text = await session.call(("INFO", "memory"), DEADLINE_S)
    assert isinstance(text, bytes)
    return next(int(line.split(":")[1]) for line in text.decode().splitlines() if line.startswith("used_memory:"))


def report(made: Sequence[Case]) -> None:
    """Prints the table and the ratios."""
    print(f"{'µs per call':<44}{'server':>12}{'p50':>10}{'p95':>10}{'p99':>10}   (the last three: client, wall)")
    for each in made:
        print(each.row())
    ping, baseline = made[0], made[-1]
    lookup = next(each for each in made if each.name == f"lookup, {BASELINE}")
    print(
        f"\nHMGET per block / lookup: {baseline.server_us / lookup.server_us:.1f} at the server, "
        f"{statistics.median(baseline.walls_us) / statistics.median(lookup.walls_us):.1f} at the client (p50)"
    )
    copy = next(each for each in made if each.name == f"copy, {BASELINE}")
    part = statistics.median(lookup.walls_us) / statistics.median(copy.walls_us)
    print(f"copy / lookup at the client: 1/{part:.1f} (p50)")
    ratio = statistics.median(lookup.walls_us) / statistics.median(ping.walls_us)
    print(f"lookup / PING at the client: {ratio:.1f} (p50)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--held", type=int, default=20_000, help="blocks that each worker holds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sc-") as folder, EmbeddedValkey.start(Path(folder)) as server:
        print(
            f"{arguments.rounds:,} rounds, {NUM_BLOCKS} blocks, {NUM_WORKERS} workers of {arguments.held:,} blocks each"
        )
        print(f"embedded Valkey over its Unix socket, {os.cpu_count()} CPUs, Python {platform.python_version()}\n")
        report(asyncio.run(run(server.urls, arguments.held, arguments.rounds)))
        sizes = asyncio.run(bytes_per_block(server.urls))
        print(f"memory for each block of a worker: {min(sizes):.1f} to {max(sizes):.1f} bytes ({len(SIZES)} sizes)")


if __name__ == "__main__":
    main()
