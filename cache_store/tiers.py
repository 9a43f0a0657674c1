"""What every tier that holds blocks offers; the device's block pool is the first.

The domain is the first parameter wherever blocks are named: a tier has no way to be asked without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_store.domain import Domain
from cache_store.policy import Outcome
from cache_store.prefix_tree import Block
from cache_store.tier_kind import TierKind
from cache_store.tokens import PackedTokens


@dataclass(frozen=True, slots=True)
class PartialMatch:
    """A block whose leading tokens fit: copy them, never write to it. Pinned."""

    source: Block
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt can be reused, pinned in one transaction."""

    blocks: tuple[Block, ...]
    """Full blocks from position 0 on, up to where every cache group has what is read from there on."""
    partial: PartialMatch | None
    """What follows them, to be released no later than the blocks."""

    @property
    def pinned(self) -> tuple[Block, ...]:
        """All pinned blocks in position order, as `release` takes them."""
        return self.blocks if self.partial is None else (*self.blocks, self.partial.source)


@dataclass(frozen=True, slots=True)
class Granted:
    """New blocks, pinned once, and the slots that held another domain's bytes.

    The slots must be overwritten before the next forward, also where the blocks are given back before they were used.
    """

    blocks: tuple[Block, ...]
    scrubs: tuple[tuple[int, int], ...]
    """(group, slot)."""


@dataclass(frozen=True, slots=True)
class Short:
    """Not enough blocks; nothing was changed."""

    num_available: int


class Tier(Protocol):
    """A place for blocks with exact-prefix lookup. Single-threaded: its owner is the engine's thread."""

    @property
    def kind(self) -> TierKind:
        """Where."""
        ...

    @property
    def num_blocks(self) -> int:
        """Capacity."""
        ...

    def max_blocks(self, domain: Domain) -> int:
        """Blocks that the domain's tenant could have if nobody else used the tier: what needs more never fits."""
        ...

    def num_available(self, domain: Domain) -> int:
        """Blocks that `allocate` can grant to the domain now: unused ones and those that may be evicted for it."""
        ...

    def match_length(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> int:
        """Leading tokens that `match_and_pin` would find; changes nothing, not even recency."""
        ...

    def match_and_pin(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> Match:
        """Longest match within the first `max_tokens` tokens, by exact comparison."""
        ...

    def note_reuse(self, domain: Domain, match: Match) -> None:
        """Counts what a request matched that goes on from it."""
        ...

    def allocate(self, domain: Domain, num_blocks: int) -> Granted | Short:
        """New blocks for bytes of `domain`, evicting what nobody holds, leaves first.

        Who pays is decided by the quotas (`cache_store/lending.py`); what of a tenant goes first, by its policy.
        """
        ...

    def commit(
        self, domain: Domain, parent: Block | None, blocks: Sequence[Block], tokens: PackedTokens
    ) -> Sequence[Block]:
        """Makes a run of full, completely written blocks matchable below `parent` (None: the first of a prompt).

        `tokens` are those of all blocks. Returns the blocks that stand there: where an equal one was there before, the
        caller's pin moves to it and the new one is given back.
        """
        ...

    def pin(self, blocks: Sequence[Block]) -> None:
        """One more holder of blocks that are held already."""
        ...

    def release(self, blocks: Sequence[Block], outcome: Outcome | None = None) -> None:
        """Ends one hold of each block, which all belong to one domain. In position order: the last is evictable first.

        With an `outcome` the blocks have been used by a request that ended so; without one they are as before.
        """
        ...
