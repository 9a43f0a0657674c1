"""A block pool and requests that ran to their end in it, in one call each: for tests of what keeps or drops blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.domain import Domain
from cache_store.prefix_tree import Block
from cache_store.tier_kind import DEVICE_ONLY, TierSizes
from cache_store.tiers import Short
from cache_store.tokens import pack, part
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.outcomes import make_outcome

BLOCK = 4
ACME, GLOBEX = make_domain("acme"), make_domain("globex")


class StoredPrefixes:
    """A pool with a clock of its own."""

    def __init__(self, num_blocks: int = 16, sizes: TierSizes = DEVICE_ONLY) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(one_group(BLOCK), num_blocks, self.clock, sizes=sizes)

    def request(self, tokens: Iterable[int], domain: Domain = ACME, ttl_s: float = math.inf) -> bool:
        """Matches, computes the rest, stores it, ends. False, and nothing done, where the pool has no room."""
        held = self.hold(tokens, domain)
        if held is None:
            return False
        self.pool.release(held, make_outcome(ttl_s=ttl_s))
        self.pool.check_invariants()
        return True

    def hold(self, tokens: Iterable[int], domain: Domain = ACME) -> tuple[Block, ...] | None:
        """As a request that has computed its prompt and goes on."""
        packed = pack(tokens)
        num_full = len(packed) // 4 // BLOCK
        match = self.pool.match_and_pin(domain, packed, num_full * BLOCK)
        if match.partial is not None:
            self.pool.release((match.partial.source,))
        start = len(match.blocks)
        granted = self.pool.allocate(domain, num_full - start)
        if isinstance(granted, Short):
            self.pool.release(match.blocks)
            return None
        parent = match.blocks[-1] if match.blocks else None
        new = self.pool.commit(domain, parent, granted.blocks, part(packed, start * BLOCK, num_full * BLOCK))
        return (*match.blocks, *new)

    def pass_time(self, seconds: float) -> None:
        """Time, and a look at what is over."""
        self.clock.advance(seconds)
        self.pool.expire()
        self.pool.check_invariants()

    def match(self, tokens: Iterable[int], domain: Domain = ACME) -> int:
        """Leading tokens that are there."""
        packed = pack(tokens)
        return self.pool.match_length(domain, packed, len(packed) // 4)
