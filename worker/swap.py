"""Blocks on their way to the device, and the sequences that wait for them.

A waiting sequence that would start now, and of whose prompt a lower tier holds more than the device, gets that first,
where loading is faster than computing (`worker/swap_cost.py`). It waits meanwhile and holds nothing: its *swap-in*
holds the device's part of the prompt, the blocks that are filled and their sources, until every load of it has been
reported. Then what came whole is committed like computed blocks and let go of, and the sequence is tried again. So
holds of swap-ins end by themselves, whatever becomes of the sequence. Nobody else waits for them. Blocks that came from
another worker (`worker/fetches.py`) go the same way, without a source that is held. Owned by the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from cache_store.block_pool import BlockPool
from cache_store.clock import Clock
from cache_store.domain import Domain, TenantId
from cache_store.lower_block import LowerBlock
from cache_store.lower_tiers import LowerTiers
from cache_store.peer_seal import block_names
from cache_store.prefix_tree import Block
from cache_store.tier_kind import TierKind
from cache_store.tokens import PackedTokens, count, part
from cache_store.transfers import Load, TransferId, TransferResult
from worker.fetch_cost import FetchCost
from worker.fetches import Fetches, Landing
from worker.peers import Peers
from worker.rate import RateMeter
from worker.sequence import Sequence, SwapIn
from worker.swap_cost import SwapCost

MAX_SWAP_INS = 2
"""Swap-ins that a sequence waits for before it starts: what it loaded may be gone before there is room for it."""

Allocate = Callable[[Domain, int], tuple[Block, ...]]


@dataclass(slots=True, eq=False)
class _Load:
    swap_in: _OwnedSwapIn
    number: int
    """Of the block in the swap-in."""


@dataclass(slots=True, eq=False)
class _OwnedSwapIn:
    """A swap-in and what it holds."""

    domain: Domain
    state: SwapIn
    held: tuple[Block, ...]
    """The device's part of the prompt, which the blocks follow."""
    blocks: tuple[Block, ...]
    sources: tuple[LowerBlock, ...]
    """Empty where they have come from another worker."""
    tokens: PackedTokens
    """Of the blocks."""
    num_running: int
    used_s: float | None = None
    """When the blocks were used elsewhere, where nobody asked for them here."""
    failed: set[int] = field(default_factory=set)
    is_void: bool = False
    """Nothing of it may be used: its domain was purged meanwhile, or the plan that started it failed."""


class Swap:
    """All swap-ins of one engine."""

    def __init__(
        self, pool: BlockPool, block_size: int, block_bytes: int, rate: RateMeter, peers: Peers, clock: Clock
    ) -> None:
        self._pool = pool
        self._lower = pool.lower
        self._block_size = block_size
        self._cost = SwapCost(lambda: rate.tokens_per_s, self._load_block_s)
        self._clock = clock
        fetch_cost = FetchCost(lambda: rate.tokens_per_s, block_size, clock)
        self.fetches = Fetches(pool, block_size, block_bytes, peers, fetch_cost, clock, self._land)
        """What is on its way from other workers."""
        self._allocate: Allocate = _nothing
        self._last = 0
        self._running: dict[TransferId, _Load] = {}
        self._by_source: dict[LowerBlock, _OwnedSwapIn] = {}
        self._loads: list[Load] = []
        """For the next plan."""

    def bind(self, allocate: Allocate) -> None:
        """`allocate` gives blocks of a domain that are available, and sees to their scrubs."""
        self._allocate = allocate

    @property
    def num_running(self) -> int:
        """Loads that have not ended."""
        return len(self._running)

    @property
    def held(self) -> Iterator[Block]:
        """Blocks that swap-ins hold, each as often as it is held."""
        for swap_in in {load.swap_in: None for load in self._running.values()}:
            yield from swap_in.held
            yield from swap_in.blocks

    @property
    def domains(self) -> Iterator[Domain]:
        """Of what is on its way, also where nobody waits for it any more."""
        for load in self._running.values():
            yield load.swap_in.domain
        yield from self.fetches.domains

    def begin(self, sequence: Sequence) -> bool:
        """Brings what lower tiers, or else another worker, hold of a prompt, after what the device has.

        To be called for a sequence that could start. False, and nothing has changed, where nothing is worth it.
        """
        if sequence.num_swap_ins >= MAX_SWAP_INS:
            return False
        return self._begin_lower(sequence) or self.fetches.begin(sequence)

    def stop_waiting(self, sequence: Sequence) -> None:
        """A sequence that waits ends: what only it waits for is not fetched any further."""
        self.fetches.drop(sequence)

    def _begin_lower(self, sequence: Sequence) -> bool:
        if self._lower is None:
            return False
        held, found = self._pool.pin_loadable(sequence.owner.domain, sequence.prefix, sequence.num_tokens - 1)
        if not found:
            return False
        running = self._by_source.get(found[0])
        if running is not None:  # for another sequence: nothing is loaded twice
            self._pool.release(held)
            sequence.wait_for(running.state, self._clock.monotonic_s())
            return True
        sources = self._worthwhile(sequence, found)
        sources = sources[: self._pool.num_loadable(held, sources)]
        if not sources or not self._pool.windows.lock_part(held, len(sources), sequence.owner.domain.tenant):
            self._pool.release(held)
            return False
        self._begin(sequence, held, sources)
        return True

    @property
    def has_loads(self) -> bool:
        """Whether the next plan starts some."""
        return bool(self._loads)

    def drain(self) -> tuple[Load, ...]:
        """Loads for the next plan."""
        loads, self._loads = tuple(self._loads), []
        return loads

    def take(self, result: TransferResult) -> None:
        """A transfer has ended: a load, or a spill of the lower tiers."""
        load = self._running.pop(result.id, None)
        if load is None:
            self._tiers.finish_spill(result)
            return
        swap_in = load.swap_in
        if not result.ok:
            swap_in.failed.add(load.number)
        elif swap_in.sources:
            self._tiers.note_loaded(swap_in.sources[load.number], result.seconds)
        swap_in.num_running -= 1
        if swap_in.num_running == 0:
            self._end(swap_in)

    def give_up(self, loads: Iterable[Load]) -> None:
        """The plan that started them failed: its scrubs, which are repeated, may hit what they have brought."""
        for load in loads:
            self._running[load.id].swap_in.is_void = True

    def purge(self, roots: Container[bytes]) -> None:
        """Nothing that is on its way for the domains of these roots is used."""
        for load in self._running.values():
            load.swap_in.is_void = load.swap_in.is_void or load.swap_in.domain.root in roots
        self.fetches.purge(roots)

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree."""
        swap_ins = {load.swap_in: None for load in self._running.values()}
        assert sum(each.num_running for each in swap_ins) == len(self._running)
        assert set(self._by_source.values()) == {each for each in swap_ins if each.sources}
        self.fetches.check_invariants()
        assert len(self._by_source) == sum(len(each.sources) for each in swap_ins), "a block is loaded twice"
        for each in swap_ins:
            assert each.state.end_s is None
            assert all(block.ref_count > 0 and block.root == each.domain.root for block in (*each.held, *each.blocks))

    def _worthwhile(self, sequence: Sequence, found: tuple[LowerBlock, ...]) -> tuple[LowerBlock, ...]:
        sources = tuple(takewhile(lambda source: source not in self._by_source, found))
        sources = sources[: self._room(sequence.owner.domain.tenant)]
        if self._pool.quotas.of(sequence.owner.domain.tenant).share(self._pool.kind).is_strict:
            return sources  # what others do to the measured speeds changes nothing for it
        return sources[: self._cost.num_worthwhile(sources, self._block_size, len(self._running))]

    def _room(self, tenant: TenantId) -> int:
        """Blocks that may be loaded for a tenant: nobody can take them back before they have come.

        Those within its guarantee, and those that nobody is guaranteed.
        """
        guarantees = self._pool.guarantees()
        held: Counter[TenantId] = Counter()
        for swap_in in {load.swap_in: None for load in self._running.values()}:
            held[swap_in.domain.tenant] += len(swap_in.held) + len(swap_in.blocks)
        num_beyond = sum(max(0, num - guarantees.get(each, 0)) for each, num in held.items())
        num_free = self._pool.num_blocks - sum(guarantees.values()) - num_beyond
        return max(0, guarantees.get(tenant, 0) - held[tenant]) + max(0, num_free)

    def _begin(
        self,
        sequence: Sequence,
        held: tuple[Block, ...],
        sources: tuple[LowerBlock, ...],
    ) -> None:
        self._tiers.hold(sources)  # before there is room for them on the device, which others may have to leave
        blocks = self._allocate(sequence.owner.domain, len(sources))
        self._pool.windows.reserve_part(blocks)
        state = SwapIn(len(held), tuple(source.tier for source in sources))
        first = len(held) * self._block_size
        tokens = part(sequence.prefix, first, first + len(blocks) * self._block_size)
        swap_in = _OwnedSwapIn(sequence.owner.domain, state, held, blocks, sources, tokens, len(blocks))
        for number, (source, block) in enumerate(zip(sources, blocks, strict=True)):
            identifier = self._new_transfer()
            self._loads.append(Load(identifier, source.tenant, source.name, source.host_slot, block.slots))
            self._running[identifier] = _Load(swap_in, number)
            self._by_source[source] = swap_in
        sequence.wait_for(state, self._clock.monotonic_s())

    def _land(self, landing: Landing) -> bool:
        """Lets blocks that came from another worker go to the device: leading ones, as many as have room there."""
        domain, tokens, size = landing.domain, landing.tokens, self._block_size
        match = self._pool.match_and_pin(domain, tokens, count(tokens))
        held = match.blocks
        self._pool.release(match.pinned[len(held) :])
        data = landing.blocks[max(0, len(held) - landing.first_block) :]
        num_new = min(len(data), self._room(domain.tenant), self._pool.num_available(domain))
        if len(held) < landing.first_block:
            num_new = 0  # what they follow is gone
        elif landing.used_s is not None:
            num_new = self._pool.adoptions.make_room(domain, num_new, landing.used_s)
        if num_new == 0:
            self._pool.release(held)
            return False
        blocks = self._allocate(domain, num_new)
        state = landing.state
        state.move(len(held), state.tiers[:num_new])
        filled = part(tokens, len(held) * size, (len(held) + num_new) * size)
        swap_in = _OwnedSwapIn(domain, state, held, blocks, (), filled, num_new, landing.used_s)
        names = block_names(domain, tokens, len(held), size)
        for number, (name, arrived, block) in enumerate(zip(names[:num_new], data[:num_new], blocks, strict=True)):
            identifier = self._new_transfer()
            self._loads.append(Load(identifier, domain.tenant, name, None, block.slots, arrived))
            self._running[identifier] = _Load(swap_in, number)
        return True

    def _end(self, swap_in: _OwnedSwapIn) -> None:
        """All its loads have ended: commits what came whole and lets go of everything."""
        blocks = swap_in.blocks
        if swap_in.sources:
            self._let_go(swap_in)
        num_whole = 0 if swap_in.is_void else min(swap_in.failed, default=len(blocks))
        parent = swap_in.held[-1] if swap_in.held else None
        tokens = part(swap_in.tokens, 0, num_whole * self._block_size)
        standing = self._pool.commit(swap_in.domain, parent, blocks[:num_whole], tokens)
        if swap_in.used_s is not None:
            self._pool.adoptions.date((*swap_in.held, *standing), swap_in.used_s)
        self._pool.windows.unlock((*swap_in.held, *standing, *blocks[num_whole:]))
        self._pool.release(blocks[num_whole:])
        self._pool.release((*swap_in.held, *standing))
        swap_in.state.end(num_whole, self._clock.monotonic_s())
        if not swap_in.sources:
            self.fetches.note_landed(num_whole)

    def _let_go(self, swap_in: _OwnedSwapIn) -> None:
        for source in swap_in.sources:
            del self._by_source[source]
        self._tiers.let_go(swap_in.sources)
        for number in sorted(swap_in.failed, reverse=True):
            self._tiers.lose(swap_in.sources[number])

    @property
    def _tiers(self) -> LowerTiers:
        assert self._lower is not None, "what lies in a lower tier has one"
        return self._lower

    def _load_block_s(self, tier: TierKind) -> float:
        return self._tiers.load_block_s(tier)

    def _new_transfer(self) -> TransferId:
        if self._lower is not None:
            return self._lower.new_transfer()
        self._last += 1
        return TransferId(self._last)


def _nothing(_: Domain, num_blocks: int) -> tuple[Block, ...]:
    raise AssertionError(f"{num_blocks} blocks are asked for before anybody gives some")
