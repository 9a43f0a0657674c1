"""A small pool with tiers below, and requests that ran to their end in it: for tests of what goes where."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cache_store.domain import Domain
from cache_store.lower_block import LowerBlock
from cache_store.prefix_tree import Block
from cache_store.tier_kind import TierSizes
from cache_store.tiers import Granted
from cache_store.tokens import pack, part
from cache_store.transfers import Moves, Spill, TransferResult
from tests.support.outcomes import make_outcome
from tests.support.stored_prefixes import ACME, BLOCK, StoredPrefixes


class TieredPrefixes:
    """What one plan would move is moved when a test says so."""

    def __init__(self, num_device: int = 4, num_host: int = 4, num_disk: int = 0) -> None:
        store = StoredPrefixes(num_device, TierSizes(num_host, num_disk))
        assert store.pool.lower is not None
        self.pool, self.clock, self.lower = store.pool, store.clock, store.pool.lower

    def request(
        self, tokens: Iterable[int], domain: Domain = ACME, *, session_end: bool = False, ttl_s: float = math.inf
    ) -> None:
        """Loads what lower tiers have, computes the rest, ends."""
        packed = pack(tokens)
        self.clock.advance(0.001)
        self.pool.expire()
        held = self.pool.match_and_pin(domain, packed, len(packed)).blocks
        sources = self.find(packed, domain, held)
        self.lower.hold(sources)
        granted = self.pool.allocate(domain, len(packed) // 4 // BLOCK - len(held))
        assert isinstance(granted, Granted)
        self.lower.let_go(sources)
        for source in sources:
            self.lower.note_loaded(source, 0.5)
        rest = part(packed, len(held) * BLOCK, len(packed) // 4)
        standing = self.pool.commit(domain, held[-1] if held else None, granted.blocks, rest)
        self.pool.release((*held, *standing), make_outcome(session_end=session_end, ttl_s=ttl_s))
        self.pool.check_invariants()

    def find(self, tokens: bytes, domain: Domain = ACME, held: Iterable[Block] = ()) -> tuple[LowerBlock, ...]:
        """What follows the blocks that are held."""
        return self.lower.find(domain, tuple(held), part(tokens, 0, len(tokens) // 4), len(tokens) // 4)

    def below(self, tokens: Iterable[int], domain: Domain = ACME) -> list[str]:
        """Tiers of the blocks that could be loaded after those that the device has."""
        packed = pack(tokens)
        match = self.pool.match_and_pin(domain, packed, len(packed))
        found = self.find(packed, domain, match.blocks)
        self.pool.release(match.pinned)
        return [str(block.tier) for block in found]

    def move(self) -> Moves:
        """A plan that ran; spills go on."""
        moves = self.lower.drain()
        self.lower.end_moves(moves, ok=True)
        self.pool.check_invariants()
        return moves

    def end(self, spills: Iterable[Spill], *, ok: bool = True) -> None:
        """Spills end."""
        for spill in spills:
            self.lower.finish_spill(TransferResult(spill.id, ok, 0.0))
        self.pool.check_invariants()

    def settle(self) -> Moves:
        """Everything that is to be moved is moved."""
        moves = self.move()
        self.end(moves.spills)
        return moves
