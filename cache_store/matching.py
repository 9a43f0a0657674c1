"""What of a prompt can be reused: the chain of blocks that the tree has, as far as every cache group has what it needs.

Pure lookups; changes nothing and holds nothing. Owned by the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cache_store.domain import Domain
from cache_store.lower_block import LowerBlock
from cache_store.lower_tiers import LowerTiers
from cache_store.pool_sizes import ABSENT
from cache_store.prefix_tree import Block, PrefixTree
from cache_store.tier_kind import TierKind
from cache_store.tiers import Match, PartialMatch
from cache_store.tokens import PackedTokens
from cache_store.usage import CachedTokens
from cache_store.windows import Windows


class Matching:
    """Over the blocks of one pool and the tiers below it."""

    def __init__(self, tree: PrefixTree, windows: Windows, lower: LowerTiers | None, block_size: int) -> None:
        self._tree = tree
        self._windows = windows
        self._lower = lower
        self._block_size = block_size

    def chain(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> list[Block]:
        """All full blocks of the prompt that the device has, whether they can be reused or not."""
        return self._tree.match(domain, tokens, max_tokens)

    def match(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> Match:
        """The longest reuse; not pinned."""
        chain = self._tree.match(domain, tokens, max_tokens)
        if not self._windows:
            run = self._tree.longest_run(domain, chain, tokens, max_tokens)
            return Match(tuple(chain), PartialMatch(*run) if run else None)
        run = self._tree.longest_run(domain, chain, tokens, max_tokens, self._windows.fits)
        if run is not None and self._windows.has_run(chain, run[1]):
            return Match(tuple(chain), PartialMatch(*run))
        return Match(tuple(chain[: self._windows.usable(chain)]), None)

    def length(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> int:
        """Tokens of the longest reuse."""
        match = self.match(domain, tokens, max_tokens)
        return len(match.blocks) * self._block_size + (0 if match.partial is None else match.partial.num_tokens)

    def loadable(
        self, domain: Domain, chain: Sequence[Block], tokens: PackedTokens, max_tokens: int
    ) -> tuple[LowerBlock, ...]:
        """Blocks of lower tiers that follow the device's `chain` and make it reusable up to their end."""
        found = () if self._lower is None else self._lower.find(domain, chain, tokens, max_tokens)
        return found[: self.num_loadable(chain, found)]

    def num_loadable(self, chain: Sequence[Block], found: Sequence[LowerBlock]) -> int:
        """How many of `found`, which follow the chain, make it reusable up to their end."""
        if not (found and self._windows):
            return len(found)
        num_here = len(chain)

        def has(group: int, at: int) -> bool:
            return chain[at].slots[group] != ABSENT if at < num_here else found[at - num_here].has(group)

        return self._windows.boundary(num_here + len(found), num_here, has) - num_here

    def leaves(self) -> Iterator[tuple[Domain, Block | LowerBlock]]:
        """Blocks below which nothing is, on any tier."""
        for block in self._tree.blocks():
            if not block.children and (block.lower is None or not block.lower.children):
                yield self._tree.root_of(block).domain, block
        for node in () if self._lower is None else self._lower.leaves():
            if node.device is None:
                yield node.domain.domain, node

    def cached_tokens(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> CachedTokens:
        """Leading tokens that can be reused, by tier."""
        if self._lower is not None:
            chain = self._tree.match(domain, tokens, max_tokens)
            found = self.loadable(domain, chain, tokens, max_tokens)
            if found:
                num_host = sum(block.tier is TierKind.HOST for block in found)
                blocks = (len(chain), num_host, len(found) - num_host)
                return CachedTokens(*(num_blocks * self._block_size for num_blocks in blocks))
        return CachedTokens(self.length(domain, tokens, max_tokens))
