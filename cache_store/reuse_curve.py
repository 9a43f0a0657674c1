"""How often a tenant would hit with more or less room: its miss-ratio curve, live, from what it asked for.

For each block that is asked for, its stack distance is counted: how many other blocks of the tenant were used since it
was used last. With least-recently-used eviction it is hit wherever there is room for more than that. Only blocks whose
digest is below a bound are followed, and distances scaled up (as in SHARDS, Waldspurger et al., FAST 2015); the bound
falls until those followed fit. Of one request the tail counts as used first, as in the pool.

Holds digests of the tenant's own blocks, and nothing of other tenants changes it. Owned by the tenant's account.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

HALF_LIFE_S = 86_400.0
"""After a day what was asked for counts half."""

BINS_PER_DOUBLING = 32
NUM_BINS = 32 * BINS_PER_DOUBLING

_EVERYTHING = b"\xff" * 17
_MAX_DOUBLINGS = 200
_DIGEST_BITS = 128


@dataclass(frozen=True, slots=True)
class CurvePoints:
    """A curve as it travels."""

    asked_blocks: float
    """Blocks of prompts, those of late counting more."""
    hits_by_bin: tuple[float, ...]
    """Of them, those hit with room for bin_start(k) to bin_start(k + 1) blocks, and not with less."""

    def hit_share(self, num_blocks: float) -> float:
        """Part of the blocks that are hit with room for so many."""
        if self.asked_blocks <= 0:
            return 0.0
        hits = 0.0
        for at, number in enumerate(self.hits_by_bin):
            start, end = bin_start(at), bin_start(at + 1)
            if num_blocks >= end:
                hits += number
            elif num_blocks > start:
                hits += number * (num_blocks - start) / (end - start)
        return min(1.0, max(0.0, hits / self.asked_blocks))


NO_CURVE = CurvePoints(0.0, ())


def bin_of(distance: float) -> int:
    """Which bin a distance of at least 0 falls into."""
    return min(NUM_BINS - 1, int(math.log2(distance + 1) * BINS_PER_DOUBLING))


def bin_start(at: int) -> float:
    """The least distance of a bin."""
    return float(2 ** (at / BINS_PER_DOUBLING) - 1)


class ReuseCurve:
    """Of one tenant."""

    __slots__ = ("_asked", "_bins", "_counts", "_depth",
        "_followed", "_half_life_s", "_last", "_limit", "_now", "_room", "_scale",
                 "_since_s")  # fmt: skip

    def __init__(self, room: int, depth: int, half_life_s: float = HALF_LIFE_S) -> None:
        """Follows at most `room` blocks; distances beyond `depth` blocks need not be told apart."""
        assert room >= 1
        self._room = room
        self._depth = depth
        self._half_life_s = half_life_s
        self._scale = 1
        """Blocks for which one that is followed stands; a power of two."""
        self._limit = _EVERYTHING
        """Digests below it are followed."""
        self._last: OrderedDict[bytes, int] = OrderedDict()
        """Blocks that are followed, the one used last at the end → number of the request that used it."""
        self._counts = _Counts(2 * room)
        """How many there are by that number."""
        self._now = 0
        self._bins = [0.0] * NUM_BINS
        self._asked = 0.0
        """Blocks of prompts."""
        self._followed = 0.0
        """The same, by those that are followed: hits are told as a part of it."""
        self._since_s = -math.inf

    @property
    def num_followed(self) -> int:
        """Blocks."""
        return len(self._last)

    @property
    def asked_blocks(self) -> float:
        """Blocks of prompts, those of late counting more."""
        return self._asked

    def use(self, digests: Sequence[bytes], num_asked: int, now_s: float) -> None:
        """A request is over that used these blocks, first to last; the first `num_asked` are of its prompt."""
        weight = self._weight(now_s)
        limit = self._limit
        followed = [(digest, at) for at, digest in enumerate(digests) if digest < limit]
        scaled = weight * self._scale
        self._asked += weight * num_asked
        if not followed:
            return
        self._followed += scaled * sum(at < num_asked for _, at in followed)
        if self._now + 1 >= self._counts.size:
            self._renumber()
        last, bins, counts, scale = self._last, self._bins, self._counts, self._scale
        before, newer, num_equal = 0, 0, 0
        for digest, at in followed:
            found = last.get(digest)
            if found is None:
                continue
            if found != before:
                before, newer, num_equal = found, len(last) - counts.up_to(found), 0
            if at < num_asked:
                bins[bin_of((newer + num_equal + 0.5) * scale)] += scaled
            num_equal += 1
        self._move([digest for digest, _ in followed])

    def resize(self, room: int) -> None:
        """Follows at most so many blocks from now on."""
        if room != self._room:
            self._room = room
            self._counts = _Counts(2 * room)
            self._shrink()
            self._renumber()

    def points(self) -> CurvePoints:
        """The curve so far."""
        if self._followed <= 0:
            return NO_CURVE
        end = max((at for at, number in enumerate(self._bins) if number), default=-1) + 1
        ratio = self._asked / self._followed
        return CurvePoints(self._asked, tuple(number * ratio for number in self._bins[:end]))

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree."""
        assert len(self._last) <= self._room
        assert all(digest < self._limit for digest in self._last)
        numbers = list(self._last.values())
        assert numbers == sorted(numbers), "what was used later is further back"
        assert not numbers or numbers[-1] <= self._now < self._counts.size
        assert all(self._counts.up_to(each) == sum(n <= each for n in numbers) for each in set(numbers))

    def _weight(self, now_s: float) -> float:
        """What is counted now; it grows, so that what was counted before counts less."""
        if self._since_s == -math.inf:
            self._since_s = now_s
        doublings = (now_s - self._since_s) / self._half_life_s
        if doublings > _MAX_DOUBLINGS:
            self._bins = [number * 2.0**-doublings for number in self._bins]
            self._asked *= 2.0**-doublings
            self._followed *= 2.0**-doublings
            self._since_s, doublings = now_s, 0.0
        return float(2.0**doublings)

    def _move(self, digests: list[bytes]) -> None:
        """These were used just now, the first of them last."""
        self._now += 1
        last, counts, now = self._last, self._counts, self._now
        for digest in reversed(digests):
            found = last.get(digest)
            if found is not None:
                counts.add(found, -1)
                last.move_to_end(digest)
            last[digest] = now
            counts.add(now, 1)
        if len(last) > self._room:
            self._shrink()

    def _shrink(self) -> None:
        """Follows fewer blocks: every other one, where the rest would not reach deep enough, else those used last."""
        while len(self._last) > self._room:
            if self._room * self._scale >= self._depth:
                _, number = self._last.popitem(last=False)
                self._counts.add(number, -1)
                continue
            self._scale *= 2
            self._limit = ((1 << _DIGEST_BITS) // self._scale).to_bytes(_DIGEST_BITS // 8, "big")
            for digest in [digest for digest in self._last if digest >= self._limit]:
                self._counts.add(self._last.pop(digest), -1)

    def _renumber(self) -> None:
        """Numbers the requests from 1 again."""
        self._counts.clear()
        self._now = before = 0
        for digest, number in self._last.items():
            if number != before:
                self._now, before = self._now + 1, number
            self._last[digest] = self._now
            self._counts.add(self._now, 1)


class _Counts:
    """Sums over a growing number of counters in logarithmic time (Fenwick, 1994)."""

    __slots__ = ("_sums", "size")

    def __init__(self, size: int) -> None:
        self.size = size + 2
        """Numbers are below it."""
        self._sums = [0] * self.size

    def clear(self) -> None:
        """All are 0."""
        self._sums = [0] * self.size

    def add(self, number: int, change: int) -> None:
        """Changes one."""
        sums, size = self._sums, self.size
        while number < size:
            sums[number] += change
            number += number & -number

    def up_to(self, number: int) -> int:
        """The sum of all up to and with it."""
        sums, total = self._sums, 0
        while number:
            total += sums[number]
            number &= number - 1
        return total
