"""Prefixes that workers will hold soon, because this router has just sent them there: the index cannot know them yet.

So equal prompts that come in a burst go where the first one went. An entry expires by itself. Keyed by domain like the
index, so that no tenant's requests change where another's go. Owned by one event loop.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from cache_store.clock import Clock
from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag, TenantId
from cache_store.index import Incarnation
from cache_store.index_replica import leading

LIFETIME_S = 10.0
"""Beyond the time after which the worker should have computed the prompt."""

SETTLED_S = 1.0
"""How long an entry counts after the first token: by then the index knows more."""

MAX_BLOCKS = 262_144
"""Over all entries; beyond it the oldest one of the tenant that has most goes."""

_MANY = 64
"""Places of entries that were withdrawn are kept for the next that many, at least."""

_Place = tuple[DomainTag, Incarnation]


@dataclass(slots=True, eq=False, repr=False)
class Speculation:
    """One prompt on its way to one worker. Its state is that of the Speculations that made it."""

    expires_s: float
    number: int
    tenant: TenantId
    place: _Place
    digests: tuple[bytes, ...]
    is_settled: bool = False


class _Share:
    """What one tenant has on its way."""

    __slots__ = ("entries", "num_blocks")

    def __init__(self) -> None:
        self.num_blocks = 0
        self.entries: dict[int, Speculation] = {}
        """By number, oldest first."""


class Speculations:
    """Of one router."""

    def __init__(self, clock: Clock, max_blocks: int = MAX_BLOCKS) -> None:
        self._clock = clock
        self._max_blocks = max_blocks
        self._live: dict[int, Speculation] = {}
        """Entries that count, by number."""
        self._heap: list[tuple[float, int]] = []
        """Expiry and number of each entry, and of some that do not count any more or expire sooner by now."""
        self._newest: dict[_Place, dict[bytes, Speculation]] = defaultdict(dict)
        """Per digest the entry that expires last."""
        self._shares: dict[TenantId, _Share] = {}
        """Of tenants that have entries."""
        self._num_blocks = 0
        self._next = 0

    def add(
        self, tenant: TenantId, domain_tag: DomainTag, incarnation: Incarnation, digests: bytes, delay_s: float
    ) -> Speculation:
        """A prompt is sent; it should be computed in `delay_s`.

        `digests`: of its chain of blocks those that the worker does not hold yet, packed.
        """
        self._expire()
        parts = tuple(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
        return self._add(tenant, (domain_tag, incarnation), parts, self._clock.monotonic_s() + delay_s + LIFETIME_S)

    def settle(self, entry: Speculation) -> None:
        """The worker has computed the prompt: from here on the index tells what becomes of its blocks."""
        left_s = self._clock.monotonic_s() + SETTLED_S - entry.expires_s
        entry.is_settled = True
        if left_s < 0 and entry.number in self._live:
            entry.expires_s += left_s
            heappush(self._heap, (entry.expires_s, entry.number))
            self._bound_heap()

    def withdraw(self, entry: Speculation) -> None:
        """The worker did not take it, unless it is settled: then it did.

        What other entries say of the same blocks may go too: it costs a miss.
        """
        if not entry.is_settled and entry.number in self._live:
            self._forget(entry)

    def leading(self, domain_tag: DomainTag, incarnation: Incarnation, digests: bytes, num_held: int = 0) -> int:
        """Leading blocks of a chain that the worker holds, the first `num_held`, or that are on their way to it.

        Whoever has a block has those before it.
        """
        self._expire()
        newest = self._newest.get((domain_tag, incarnation))
        rest = digests[num_held * DIGEST_BYTES :] if newest else b""
        return num_held + (leading(rest, newest) if newest and rest else 0)

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree."""
        assert self._num_blocks == sum(len(entry.digests) for entry in self._live.values()) <= self._max_blocks
        assert set(self._heap) >= {(entry.expires_s, entry.number) for entry in self._live.values()}
        assert len(self._heap) <= 2 * len(self._live) + _MANY, "what was forgotten is kept"
        assert sorted(number for share in self._shares.values() for number in share.entries) == sorted(self._live)
        for share in self._shares.values():
            assert share.num_blocks == sum(len(entry.digests) for entry in share.entries.values())
        for place, newest in self._newest.items():
            assert newest, "a place without entries is kept"
            for digest, entry in newest.items():
                assert self._live[entry.number] is entry
                assert entry.place == place
                assert digest in entry.digests

    def _add(self, tenant: TenantId, place: _Place, digests: tuple[bytes, ...], expires_s: float) -> Speculation:
        entry = Speculation(expires_s, self._next, tenant, place, digests)
        self._next += 1
        self._num_blocks += len(digests)
        share = self._shares.setdefault(tenant, _Share())
        share.num_blocks += len(digests)
        share.entries[entry.number] = entry
        self._live[entry.number] = entry
        heappush(self._heap, (expires_s, entry.number))
        newest = self._newest[place] if digests else {}
        for digest in digests:
            there = newest.get(digest)
            if there is None or there.expires_s <= expires_s:
                newest[digest] = entry
        while self._num_blocks > self._max_blocks:
            most = max(self._shares.values(), key=lambda each: each.num_blocks)
            self._forget(next(iter(most.entries.values())))
        return entry

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._heap and self._heap[0][0] <= now_s:
            _, number = heappop(self._heap)
            entry = self._live.get(number)
            if entry is not None:
                self._forget(entry)

    def _forget(self, entry: Speculation) -> None:
        del self._live[entry.number]
        self._bound_heap()
        self._num_blocks -= len(entry.digests)
        share = self._shares[entry.tenant]
        share.num_blocks -= len(entry.digests)
        del share.entries[entry.number]
        if not share.entries:
            del self._shares[entry.tenant]
        newest = self._newest.get(entry.place, {})
        for digest in entry.digests:
            if newest.get(digest) is entry:
                del newest[digest]
        if not newest:
            self._newest.pop(entry.place, None)

    def _bound_heap(self) -> None:
        if len(self._heap) > 2 * len(self._live) + _MANY:
            self._heap = [(each.expires_s, each.number) for each in self._live.values()]
            heapify(self._heap)
