"""What lies in the index while it is measured: chains that are looked up, and other blocks up to a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.index import Incarnation
from cache_store.redis_index import RedisIndexWriter
from cache_store.redis_session import RedisSession

DEADLINE_S = 30.0
TAG = DomainTag(b"benchmark domain")


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt's blocks, and how many of them each worker holds."""

    name: str
    digests: bytes
    """Packed."""
    depths: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        """Of the prompt."""
        return len(self.digests) // DIGEST_BYTES


def incarnations(num_workers: int) -> list[Incarnation]:
    """Names of workers."""
    return [Incarnation(f"{number:032x}") for number in range(num_workers)]


def digests(name: str, num_blocks: int) -> bytes:
    """Packed digests that no other name has."""
    return b"".join(xxhash.xxh3_128_digest(b"%s %d" % (name.encode(), number)) for number in range(num_blocks))


def make_chains(lengths: Sequence[int], num_workers: int) -> list[Chain]:
    """For each length one that workers hold to different depths, one that all hold and one of which all hold 40 %.

    And one that nobody holds.
    """
    last = max(1, num_workers - 1)
    made = []
    for length in lengths:
        steps = tuple(number * length // last for number in range(num_workers))
        made.append(Chain(f"{length:,} blocks, other depths", digests(f"steps {length}", length), steps))
        made.append(
            Chain(f"{length:,} blocks, all hold all", digests(f"full {length}", length), (length,) * num_workers)
        )
        part = (max(1, length * 2 // 5),) * num_workers
        made.append(Chain(f"{length:,} blocks, all hold 40 %", digests(f"part {length}", length), part))
    length = max(lengths)
    made.append(Chain(f"{length:,} blocks, nobody holds any", digests("none", length), (0,) * num_workers))
    return made


def held_by(number: int, chains: Sequence[Chain], num_held: int) -> bytes:
    """What worker `number` holds."""
    parts = [chain.digests[: chain.depths[number] * DIGEST_BYTES] for chain in chains]
    num_parts = sum(map(len, parts)) // DIGEST_BYTES
    return b"".join((*parts, digests(f"worker {number}", max(0, num_held - num_parts))))


async def fill(url: str, chains: Sequence[Chain], num_workers: int, num_blocks: int) -> None:
    """All workers together hold `num_blocks`, where the chains are not more."""
    session = RedisSession(url)
    writer = RedisIndexWriter(session, DEADLINE_S)
    for number, incarnation in enumerate(incarnations(num_workers)):
        await writer.replace(incarnation, {TAG: held_by(number, chains, num_blocks // num_workers)})
    await session.close()
