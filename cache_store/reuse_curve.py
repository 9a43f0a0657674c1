"""How often a tenant would hit with more or less room: its miss-ratio curve, live, from what it asked for.

For each block that is asked for, its stack distance is counted: how many other blocks of the tenant were used since it
was used last. With least-recently-used eviction it is hit wherever there is room for more than that. Of one request the
tail counts as used first, as in the pool.

Of a block that is still there its last use is known, and with it the distance. Of those that went only a sample is
remembered, whose digests are below a bound (as in SHARDS, Waldspurger et al., FAST 2015): it stands for the others that
had to be computed. So what fits into the room of now is exact, and what many ask for is no matter of chance.

Holds digests of the tenant's own blocks, and nothing of other tenants changes it. Owned by the tenant's account.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from cache_store.policy import Use, UsedBlock

HALF_LIFE_S = 86_400.0
"""After a day what was asked for counts half."""

BINS_PER_DOUBLING = 32
NUM_BINS = 32 * BINS_PER_DOUBLING

NUM_PLACES = 1 << 13
"""Requests whose blocks are told apart by recency; blocks that were used before them count as new."""

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
    found_blocks: float = 0.0
    """Of them, those that were there, by the order of eviction that is in force."""

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
    """Of one tenant. Requests have places in the order of their ends, from 1."""

    __slots__ = (
        "_asked",
        "_computed",
        "_depth",
        "_followed",
        "_gone_bins",
        "_half_life_s",
        "_last",
        "_limit",
        "_room",
        "_scale",
        "_since_s",
        "_stack",
        "_there_bins",
    )

    def __init__(self, room: int, depth: int, half_life_s: float = HALF_LIFE_S) -> None:
        """Remembers at most `room` blocks that went; distances beyond `depth` blocks need not be told apart."""
        assert room >= 1
        self._room = room
        self._depth = depth
        self._half_life_s = half_life_s
        self._since_s = -math.inf
        self._scale = 1
        """Blocks that one of the sample stands for; a power of two."""
        self._limit = _EVERYTHING
        """Digests below it are of the sample."""
        self._last: OrderedDict[bytes, int] = OrderedDict()
        """The sample → place of its last use, what went last at the end."""
        self._stack = _Stack(NUM_PLACES)
        self._asked = 0.0
        """Blocks of prompts; as all below, weighed by when it was."""
        self._computed = 0.0
        """Of them, those of which no use was known any more."""
        self._followed = 0.0
        """The same, by the ones of the sample and what each stands for."""
        self._there_bins = [0.0] * NUM_BINS
        """Distances of blocks that were there."""
        self._gone_bins = [0.0] * NUM_BINS
        """Distances of blocks of the sample that had gone, for all that they stand for."""

    @property
    def num_followed(self) -> int:
        """Blocks of the sample."""
        return len(self._last)

    @property
    def asked_blocks(self) -> float:
        """Blocks of prompts, those of late counting more."""
        return self._asked

    def use(self, blocks: Sequence[UsedBlock], num_asked: int, now_s: float) -> int:
        """A request is over that used these blocks, first to last, and the first `num_asked` are of its prompt.

        They are as they were used before it; the place of this use is returned.
        """
        weight = self._weight(now_s)
        self._asked += weight * num_asked
        moved: Counter[int] = Counter()
        start, of_run = 0, blocks[0].use if blocks else None
        for at, block in enumerate(blocks):
            if block.use is not of_run:
                self._note_run(blocks[start:at], of_run, num_asked - start, weight, moved)
                start, of_run = at, block.use
        self._note_run(blocks[start:], of_run, num_asked - start, weight, moved)
        for place, number in moved.items():
            self._stack.take(place, number)
        return self._stack.push(len(blocks))

    def note_evicted(self, blocks: Sequence[UsedBlock], place: int) -> None:
        """Blocks that were last used at that place have gone."""
        if place <= self._stack.oldest:
            return
        limit, last = self._limit, self._last
        for block in blocks:
            if block.digest < limit:
                last[block.digest] = place
        if len(last) > self._room:
            self._shrink()

    def resize(self, room: int) -> None:
        """Remembers at most so many blocks from now on."""
        self._room = room
        self._shrink()

    def points(self) -> CurvePoints:
        """The curve so far."""
        if self._asked <= 0:
            return NO_CURVE
        ratio = self._computed / self._followed if self._followed > 0 else 0.0
        both = [there + ratio * gone for there, gone in zip(self._there_bins, self._gone_bins, strict=True)]
        end = max((at for at, number in enumerate(both) if number), default=-1) + 1
        return CurvePoints(self._asked, tuple(both[:end]), sum(self._there_bins))

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree."""
        assert len(self._last) <= self._room
        assert all(digest < self._limit for digest in self._last)
        assert all(0 < place <= self._stack.now for place in self._last.values())
        assert self._computed <= (1 + 1e-6) * self._asked
        self._stack.check_invariants()

    def _note_run(
        self, run: Sequence[UsedBlock], use: Use | None, num_asked: int, weight: float, moved: Counter[int]
    ) -> None:
        """Blocks that follow each other and have the same last use."""
        num_asked = max(0, min(num_asked, len(run)))
        if use is None or use.place <= self._stack.oldest:
            self._note_gone(run, num_asked, weight, moved)
            return
        num_newer = self._stack.num_after(use.place) + moved[use.place]
        moved[use.place] += len(run)
        if num_asked:
            self._note_there(num_newer, num_asked, weight)

    def _note_there(self, num_newer: int, num_asked: int, weight: float) -> None:
        """Blocks that follow each other; `num_newer` others were used after the first of them."""
        bins, first, last = self._there_bins, bin_of(num_newer + 0.5), bin_of(num_newer + num_asked - 0.5)
        if first == last:
            bins[first] += weight * num_asked
            return
        for distance in range(num_newer, num_newer + num_asked):
            bins[bin_of(distance + 0.5)] += weight

    def _note_gone(self, blocks: Sequence[UsedBlock], num_asked: int, weight: float, moved: Counter[int]) -> None:
        """Blocks that follow each other and of which no use is known any more, but of the sample."""
        self._computed += weight * num_asked
        limit, last, stack, scale = self._limit, self._last, self._stack, self._scale
        before = first = 0
        for at, block in enumerate(blocks):
            if block.digest >= limit:
                continue
            if at < num_asked:
                self._followed += weight * scale
            place = last.pop(block.digest, 0)
            if place <= stack.oldest:
                continue
            if place != before:
                before, first = place, at
            moved[place] += scale
            if at < num_asked:
                self._gone_bins[bin_of(stack.num_after(place) + at - first + 0.5)] += weight * scale

    def _weight(self, now_s: float) -> float:
        """What is counted now; it grows, so that what was counted before counts less."""
        if self._since_s == -math.inf:
            self._since_s = now_s
        doublings = (now_s - self._since_s) / self._half_life_s
        if doublings > _MAX_DOUBLINGS:
            factor = 2.0**-doublings
            self._there_bins = [number * factor for number in self._there_bins]
            self._gone_bins = [number * factor for number in self._gone_bins]
            self._asked *= factor
            self._computed *= factor
            self._followed *= factor
            self._since_s, doublings = now_s, 0.0
        return float(2.0**doublings)

    def _shrink(self) -> None:
        """Remembers fewer blocks: every other one, where the rest would not reach deep enough, else those of late."""
        while len(self._last) > self._room:
            if self._room * self._scale >= self._depth:
                self._last.popitem(last=False)
                continue
            self._scale *= 2
            self._limit = ((1 << _DIGEST_BITS) // self._scale).to_bytes(_DIGEST_BITS // 8, "big")
            for digest in [digest for digest in self._last if digest >= self._limit]:
                del self._last[digest]


class _Stack:
    """How many blocks were last used at each of the last places; sums in logarithmic time (Fenwick, 1994)."""

    __slots__ = ("_numbers", "_size", "_sums", "_total", "now", "oldest")

    def __init__(self, size: int) -> None:
        self._size = size
        self._numbers = array("q", [0]) * (size + 1)
        self._sums = array("q", [0]) * (size + 1)
        self._total = 0
        self.now = 0
        """The last place."""
        self.oldest = 0
        """Places up to it are not told apart any more."""

    def num_after(self, place: int) -> int:
        """Blocks that were last used later."""
        at, total, sums = place - self.oldest, self._total, self._sums
        while at:
            total -= sums[at]
            at &= at - 1
        return max(0, total)

    def push(self, number: int) -> int:
        """So many blocks have been used now; at which place."""
        if self.now - self.oldest >= self._size:
            self._forget_half()
        self.now += 1
        self._add(self.now - self.oldest, number)
        return self.now

    def take(self, place: int, number: int) -> None:
        """So many blocks of a place have been used later. Estimates may be more than there are: on average they fit."""
        self._add(place - self.oldest, -number)

    def check_invariants(self) -> None:
        """Sums are those of the numbers."""
        assert sum(self._numbers) == self._total
        total = 0
        for at in range(1, self._size + 1):
            total += self._numbers[at]
            assert self.num_after(self.oldest + at) == max(0, self._total - total)

    def _add(self, at: int, change: int) -> None:
        self._numbers[at] += change
        self._total += change
        while at <= self._size:
            self._sums[at] += change
            at += at & -at

    def _forget_half(self) -> None:
        half = self._size // 2
        kept = self._numbers[half + 1 :]
        self.oldest += half
        self._numbers = array("q", [0]) * (self._size + 1)
        self._sums = array("q", [0]) * (self._size + 1)
        self._total = 0
        for at, number in enumerate(kept, start=1):
            if number:
                self._add(at, number)
