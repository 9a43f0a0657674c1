"""What an engine gives other workers of its blocks, and takes of theirs.

Blocks are copied between two steps and nothing is held from one copy to the next: what is evicted meanwhile ends the
answer, and nobody's guarantee notices that somebody reads. Found is by exact tokens under the domain. Where the rest is
just being computed, that is said: whoever asks may wait for it instead of computing it as well. Owned by the engine's
thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from cache_store.block_pool import BlockPool
from cache_store.domain import Domain, DomainTag, TenantId
from cache_store.hot_prefixes import CachedBlock, HotPrefix, hottest
from cache_store.prefix_tree import Block
from cache_store.tokens import PackedTokens, common_prefix, count
from cache_store.transfers import Transfers
from cache_store.usage import PeerCounts
from worker.fetches import Fetches
from worker.peers import Fetched, PeerHint
from worker.scheduler import Scheduler
from worker.sequence import Sequence, SwapIn

MAX_PREFIXES = 4_096
MAX_PREFIX_BLOCKS = 1 << 18
"""That are named when a worker leaves: those used last."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Bytes of blocks, one after the other."""

    blocks: tuple[bytearray, ...] = field(repr=False)
    is_more_coming: bool
    """A request that runs or waits here is about to compute what follows them."""


NOTHING = Exported((), is_more_coming=False)


class Exchange:
    """Of one engine."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        transfers: Transfers,
        scheduler: Scheduler,
        fetches: Fetches,
        domains: Callable[[], Iterable[Domain]],
    ) -> None:
        """`domains`: those of which something is cached or computed."""
        self._pool = pool
        self._block_size = block_size
        self._transfers = transfers
        self._scheduler = scheduler
        self._fetches = fetches
        self._domains = domains
        self._num_served = 0

    @property
    def block_bytes(self) -> int:
        """Of what is given and taken; 0: nothing ever is."""
        return 0 if self._pool.windows else self._transfers.block_bytes

    @property
    def counts(self) -> PeerCounts:
        """Since the start."""
        served_bytes = self._num_served * self.block_bytes
        return replace(self._fetches.counts, served_blocks=self._num_served, served_bytes=served_bytes)

    def arrived(self, fetched: Fetched) -> None:
        """A fetch has ended."""
        self._fetches.arrived(fetched)

    def adopt(self, hint: PeerHint, domain: Domain, tokens: PackedTokens, unused_s: float = math.inf) -> SwapIn | None:
        """Begins to fetch a prefix that no request here asks for; None where there is no room for it now.

        It replaces what was used longer ago than `unused_s`; infinite: not known, it replaces nothing.
        """
        return self._fetches.adopt(hint, domain, tokens, unused_s)

    def num_held(self, domain: Domain, tokens: PackedTokens) -> int:
        """Leading blocks of a prefix that are cached here."""
        return self._pool.cached_tokens(domain, tokens, count(tokens)).total // self._block_size

    def domain(self, tag: DomainTag) -> Domain | None:
        """The one of that name, if there is something of it."""
        return next((domain for domain in self._domains() if domain.tag == tag), None)

    def export(self, domain: Domain, tokens: PackedTokens, first_block: int, num_most: int) -> Exported:
        """Copies of the blocks of a prompt from `first_block` on, as far as they are there; at most `num_most`."""
        if not self.block_bytes:
            return NOTHING
        self._pool.expire()
        chain = self._pool.matching.chain(domain, tokens, count(tokens))
        below = self._pool.matching.loadable(domain, chain, tokens, count(tokens))
        line: list[CachedBlock] = [*chain, *below]
        lasts = self._lasting()
        while line and not lasts(line[-1]):
            line.pop()  # what has a time to live stays where its time is known
        copies: list[bytearray] = []
        for block in line[first_block : first_block + num_most]:
            buffer = bytearray(self.block_bytes)
            if not self._read(block, memoryview(buffer)):
                break
            copies.append(buffer)
        self._num_served += len(copies)
        num_there = first_block + len(copies) if copies else len(chain) + len(below)
        return Exported(tuple(copies), self._is_coming(domain, tokens, num_there))

    def hottest(self) -> list[HotPrefix]:
        """What is cached, as prefixes, those used last first, tenants in turn."""
        self._pool.expire()
        if not self.block_bytes:
            return []
        return hottest(self._pool.matching.leaves(), self._lasting(), MAX_PREFIXES, MAX_PREFIX_BLOCKS)

    def is_strict(self, tenant: TenantId) -> bool:
        """Whether its guarantee is its maximum."""
        return self._pool.quotas.of(tenant).share(self._pool.kind).is_strict

    def _lasting(self) -> Callable[[CachedBlock], bool]:
        """Whether a block has no time to live. One that nobody has let go of has that of the requests that hold it."""
        held = {
            block
            for sequence in self._scheduler.running
            if sequence.owner.request.ttl_s < math.inf
            for block in sequence.blocks
        }

        def lasts(block: CachedBlock) -> bool:
            return block not in held if block.use is None else block.use.expires_s == math.inf

        return lasts

    def _read(self, block: CachedBlock, into: memoryview) -> bool:
        """False for a block that lies on disk."""
        if isinstance(block, Block):
            self._transfers.read_device(block.slots, into)
            return True
        slot = block.host_slot
        if slot is not None:
            self._transfers.read_host(slot, into)
        return slot is not None

    def _is_coming(self, domain: Domain, tokens: PackedTokens, num_there: int) -> bool:
        sequences = (*self._scheduler.running, *self._scheduler.waiting)
        return any(self._is_computing(each, domain, tokens, num_there) for each in sequences)

    def _is_computing(self, sequence: Sequence, domain: Domain, tokens: PackedTokens, num_there: int) -> bool:
        """Not while it waits for others itself: two workers would wait for each other."""
        owner = sequence.owner
        if not owner.may_commit or owner.domain.root != domain.root or sequence.waits_for_swap:
            return False
        if owner.request.ttl_s < math.inf:
            return False  # its blocks stay here
        if sequence.id is not None and not sequence.is_prefilling:
            return False
        return common_prefix(sequence.prefix, tokens) // self._block_size > num_there
