"""Fetches of blocks from other workers, and the sequences that wait for them.

A sequence that could start, and of whose prompt another worker holds more than this one, waits for those blocks where
fetching is faster than computing (`worker/fetch_cost.py`). On their way they are bytes in buffers that are counted, and
hold no block of the pool; where they have come they go to the device as blocks of lower tiers do (`worker/swap.py`).
Others of the domain that begin alike wait for the same fetch, for as long as computing what they share would take. One
that nobody waits for any more is cancelled, and none outlives its time. Owned by the engine's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace

from cache_store.block_pool import BlockPool
from cache_store.clock import Clock
from cache_store.domain import Domain
from cache_store.tier_kind import Elsewhere
from cache_store.tokens import PackedTokens, common_prefix, count, part
from cache_store.usage import NO_PEERS, CachedTokens
from worker.fetch_cost import MAX_TIMEOUT_S, MIN_TIMEOUT_S, FetchCost
from worker.peers import Fetched, FetchId, FetchOrder, PeerHint, Peers
from worker.sequence import Sequence, SwapIn

MAX_FETCHES = 8
MAX_TENANT_FETCHES = 4
"""At once, of one worker."""

MAX_FETCH_BLOCKS = 4_096
"""Of one fetch."""

MAX_BYTES = 256 << 20
"""Of blocks that are on their way or wait to be copied to the device; one tenant's at most half of it."""

LATE_S = 2.0
"""Beyond its time a fetch is given up here, whoever carries it out."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Blocks that have come and are to go to the device."""

    domain: Domain
    tokens: PackedTokens
    """Of the prompt up to the end of the last of them."""
    first_block: int
    blocks: tuple[bytearray, ...]
    state: SwapIn
    used_s: float | None
    """When they were used last, by this worker's clock, where nobody asked for them here."""


@dataclass(slots=True, eq=False)
class _Fetch:
    order: FetchOrder
    state: SwapIn
    began_s: float
    worth_s: float
    """What computing its blocks would take, or what is taken for that."""
    used_s: float | None = None
    """Of one that is ordered for nobody yet: when its blocks were used last."""
    waiting: dict[Sequence, float] = field(default_factory=dict)
    """Until when each waits."""

    @property
    def end_block(self) -> int:
        return self.order.first_block + self.order.num_blocks

    @property
    def until_s(self) -> float:
        return self.began_s + self.order.timeout_s + LATE_S

    @property
    def is_wanted(self) -> bool:
        return self.used_s is not None or bool(self.waiting)

    def patience_s(self, num_blocks: int) -> float:
        """How long to wait for so many of its blocks."""
        return max(MIN_TIMEOUT_S, self.worth_s * num_blocks / self.order.num_blocks)

    @property
    def num_bytes(self) -> int:
        return self.order.num_blocks * self.order.block_bytes


class Fetches:
    """Of one engine."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        block_bytes: int,
        peers: Peers,
        cost: FetchCost,
        clock: Clock,
        land: Callable[[Landing], bool],
    ) -> None:
        """`land` brings what came to the device and ends its state, now or later; False: there is no place for it."""
        self._pool = pool
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._peers = peers
        self._cost = cost
        self._clock = clock
        self._land = land
        self._running: dict[FetchId, _Fetch] = {}
        self._landing: list[_Fetch] = []
        """Have come, and are not all on the device."""
        self._last = 0
        self.counts = NO_PEERS

    def begin(self, sequence: Sequence) -> bool:
        """Lets a sequence that could start wait for blocks of another worker. False, and nothing has changed, else."""
        domain, hint = sequence.owner.domain, sequence.owner.request.peer
        if not (hint or self._running or self._landing) or not sequence.owner.may_commit or not self._is_possible:
            return False
        if self._pool.quotas.of(domain.tenant).share(self._pool.kind).is_strict:
            return False  # what others fetch changes nothing for it
        most = sequence.num_tokens - 1
        here = self._pool.cached_tokens(domain, sequence.prefix, most)
        num_here = here.total // self._block_size
        now_s = self._clock.monotonic_s()
        shared = self._shared(sequence, num_here)
        if shared is not None:
            fetch, num_more = shared
            fetch.waiting[sequence] = now_s + fetch.patience_s(num_more)
        elif hint is None or sequence.has_fetched or here != CachedTokens(here.device):
            return False  # where a lower tier of this worker has more, it is nearer, and was not worth it
        else:
            num_there = min(hint.num_blocks, most // self._block_size)
            ordered = self._order_worthwhile(hint, domain, sequence.prefix, num_here, num_there)
            if ordered is None:
                return False
            fetch = ordered
            fetch.waiting[sequence] = math.inf  # it ends before
            sequence.has_fetched = True
        sequence.wait_for(fetch.state, now_s)
        return True

    def adopt(self, hint: PeerHint, domain: Domain, tokens: PackedTokens, unused_s: float) -> SwapIn | None:
        """Fetches a prefix for nobody yet, as far as it has room (`cache_store/adoptions.py`); None: not now.

        What of it is here already counts as used when it was used there.
        """
        if not self._is_possible:
            return None
        used_s = self._clock.monotonic_s() - unused_s
        num_here = self._date(domain, tokens, used_s)
        num_there = min(hint.num_blocks, count(tokens) // self._block_size)
        num_wanted = min(num_there - num_here, self._num_allowed(domain))
        num_blocks = self._pool.adoptions.num_room(domain, num_wanted, used_s) if num_wanted > 0 else 0
        if num_blocks == 0:
            return None
        tokens = part(tokens, 0, (num_here + num_blocks) * self._block_size)
        fetch = self._order(hint, domain, tokens, num_here, MAX_TIMEOUT_S)
        fetch.used_s = used_s
        return fetch.state

    def arrived(self, fetched: Fetched) -> None:
        """A fetch has ended; one that is not wanted any more is ignored."""
        fetch = self._running.pop(fetched.id, None)
        if fetch is None:
            return
        self._note(fetch, fetched)
        order, blocks = fetch.order, fetched.blocks
        if not blocks:
            fetch.state.end(0, self._clock.monotonic_s())
            return
        end = order.first_block + len(blocks)
        tokens = part(order.tokens, 0, end * self._block_size)
        self._landing.append(fetch)
        if not self._land(Landing(order.domain, tokens, order.first_block, blocks, fetch.state, fetch.used_s)):
            fetch.state.end(0, self._clock.monotonic_s())
            self._landing.remove(fetch)

    @property
    def domains(self) -> Iterator[Domain]:
        """Of what is on its way here."""
        for fetch in self._all():
            yield fetch.order.domain

    def drop(self, sequence: Sequence) -> None:
        """It does not wait for what it waited for any more."""
        for fetch in self._all():
            if (
                fetch.waiting.pop(sequence, None) is not None
                and not fetch.is_wanted
                and fetch.order.id in self._running
            ):
                self._give_up(fetch)

    def purge(self, roots: Container[bytes]) -> None:
        """Nothing that is on its way for the domains of these roots is used."""
        for fetch in tuple(self._running.values()):
            if fetch.order.domain.root in roots:
                self._give_up(fetch)

    def expire(self) -> None:
        """Gives up what should have been answered long ago, and lets those go on that have waited long enough."""
        now_s = self._clock.monotonic_s()
        for fetch in tuple(self._running.values()):
            if now_s > fetch.until_s:
                self._cost.note_failure(fetch.order.domain.tenant, fetch.order.peer.incarnation)
                self.counts = replace(self.counts, failed_fetches=self.counts.failed_fetches + 1)
                self._give_up(fetch)
        for fetch in tuple(self._running.values()):
            for sequence in [each for each, until_s in fetch.waiting.items() if now_s > until_s]:
                sequence.stop_waiting(now_s)
                self.drop(sequence)

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree."""
        assert len(self._running) <= MAX_FETCHES, "too many fetches at once"
        assert sum(each.num_bytes for each in self._all()) <= max(MAX_BYTES, self._block_bytes)
        self._cost.check_invariants()
        assert all(each.state.end_s is None for each in self._landing), "what has landed is remembered"
        for identifier, fetch in self._running.items():
            assert fetch.order.id == identifier
            assert fetch.state.end_s is None, "a fetch that has ended runs"
            assert fetch.is_wanted, "nobody waits for a fetch"
            for sequence in fetch.waiting:
                assert sequence.swap_in is fetch.state, "who waits for a fetch waits for something else"

    @property
    def _is_possible(self) -> bool:
        return self._block_bytes > 0 and not self._pool.windows

    def _all(self) -> list[_Fetch]:
        return [*self._running.values(), *self._landing]

    def _shared(self, sequence: Sequence, num_here: int) -> tuple[_Fetch, int] | None:
        """A fetch on its way that brings more of the sequence's prompt than is here, soon enough, and how much more."""
        best: tuple[_Fetch, int] | None = None
        for fetch in () if sequence.has_fetched else self._all():
            if fetch.order.domain.root != sequence.owner.domain.root or fetch.order.first_block > num_here:
                continue
            num_alike = common_prefix(fetch.order.tokens, sequence.prefix) // self._block_size
            num_more = min(num_alike, (sequence.num_tokens - 1) // self._block_size) - num_here
            if num_more > (best[1] if best else 0) and self._is_soon(fetch, num_more):
                best = fetch, num_more
        return best

    def _is_soon(self, fetch: _Fetch, num_more: int) -> bool:
        """Whether it should end before so many of its blocks were computed. One that is late is taken to stay so."""
        if fetch.order.id not in self._running:
            return True
        passed_s, patience_s = self._clock.monotonic_s() - fetch.began_s, fetch.patience_s(num_more)
        if fetch.order.timeout_s - passed_s <= patience_s:
            return True
        order = fetch.order
        expected_s = self._cost.fetch_s(order.domain.tenant, order.peer.incarnation, order.num_blocks)
        return expected_s is not None and abs(expected_s - passed_s) <= patience_s

    def _order_worthwhile(
        self, hint: PeerHint, domain: Domain, tokens: PackedTokens, num_here: int, num_there: int
    ) -> _Fetch | None:
        num_wanted = min(num_there - num_here, self._num_allowed(domain))
        if num_wanted <= 0:
            return None
        tenant, peer = domain.tenant, hint.incarnation
        num_blocks = self._cost.num_worthwhile(tenant, peer, num_wanted)
        if num_blocks == 0:
            self.counts = replace(self.counts, declined_fetches=self.counts.declined_fetches + 1)
            return None
        wanted = part(tokens, 0, (num_here + num_blocks) * self._block_size)
        return self._order(hint, domain, wanted, num_here, self._cost.timeout_s(tenant, peer, num_blocks))

    def _order(
        self, hint: PeerHint, domain: Domain, tokens: PackedTokens, first_block: int, timeout_s: float
    ) -> _Fetch:
        """Orders the blocks of `tokens` from one on."""
        self._last += 1
        num_blocks = count(tokens) // self._block_size - first_block
        order = FetchOrder(
            id=FetchId(self._last),
            peer=hint,
            domain=domain,
            tokens=tokens,
            first_block=first_block,
            num_blocks=num_blocks,
            block_bytes=self._block_bytes,
            timeout_s=timeout_s,
        )
        state = SwapIn(first_block, (Elsewhere.PEER,) * num_blocks)
        fetch = _Fetch(order, state, self._clock.monotonic_s(), self._cost.worth_s(num_blocks))
        self._running[order.id] = fetch
        self.counts = replace(self.counts, fetches=self.counts.fetches + 1)
        self._peers.order(order)
        return fetch

    def _num_allowed(self, domain: Domain) -> int:
        """Blocks that may be on their way for a domain's tenant beside what is already, and would have room."""
        of_all = self._all()
        own = [fetch for fetch in of_all if fetch.order.domain.tenant == domain.tenant]
        if len(of_all) >= MAX_FETCHES or len(own) >= MAX_TENANT_FETCHES:
            return 0
        num_bytes = min(
            MAX_BYTES - sum(fetch.num_bytes for fetch in of_all),
            MAX_BYTES // 2 - sum(fetch.num_bytes for fetch in own),
        )
        return min(MAX_FETCH_BLOCKS, num_bytes // self._block_bytes, self._pool.num_available(domain))

    def _date(self, domain: Domain, tokens: PackedTokens, used_s: float) -> int:
        """The device's blocks of a prompt have been used at a time elsewhere; how many there are."""
        match = self._pool.match_and_pin(domain, tokens, count(tokens))
        self._pool.adoptions.date(match.blocks, used_s)
        self._pool.release(match.pinned)
        return len(match.blocks)

    def _note(self, fetch: _Fetch, fetched: Fetched) -> None:
        tenant, peer = fetch.order.domain.tenant, fetch.order.peer.incarnation
        num_blocks = len(fetched.blocks)
        self._cost.note(tenant, peer, num_blocks, fetched.opening_s, fetched.transfer_s)
        if fetched.is_failed:
            self._cost.note_failure(tenant, peer)
        elif fetched.late_s is not None:
            # as many are not asked for again: they take longer to come than to be computed
            self._cost.note_late(tenant, peer, fetched.late_s and max(fetched.late_s, fetch.worth_s))
        else:
            self._cost.note_success(tenant, peer)
        self.counts = replace(
            self.counts,
            failed_fetches=self.counts.failed_fetches + (fetched.is_failed or num_blocks == 0),
            refused_blocks=self.counts.refused_blocks + fetched.num_refused,
        )

    def note_landed(self, num_blocks: int) -> None:
        """All that came together has been copied or not, and its state has ended; so many blocks are on the device."""
        self._landing = [each for each in self._landing if each.state.end_s is None]
        self.counts = replace(
            self.counts,
            fetched_blocks=self.counts.fetched_blocks + num_blocks,
            fetched_bytes=self.counts.fetched_bytes + num_blocks * self._block_bytes,
        )

    def _give_up(self, fetch: _Fetch) -> None:
        del self._running[fetch.order.id]
        self._peers.cancel(fetch.order.id)
        fetch.state.end(0, self._clock.monotonic_s())
