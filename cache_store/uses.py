"""Gives blocks the use that their tenant's policy makes of them. Decides nothing; owned by the pool."""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.account import Account
from cache_store.clock import Clock
from cache_store.policy import Outcome, Use
from cache_store.prefix_tree import Block
from cache_store.shadow import Sample


class Uses:
    """Numbers the uses of all tenants, so that of two at the same time one is the older."""

    __slots__ = ("_block_size", "_clock", "_num_uses")

    def __init__(self, block_size: int, clock: Clock) -> None:
        self._block_size = block_size
        self._clock = clock
        self._num_uses = 0

    def note(self, account: Account, blocks: Sequence[Block], outcome: Outcome, sample: Sample) -> None:
        """Blocks of a request that ended so, first to last: those that can be matched have been used."""
        if blocks[-1].parent is None:  # of a prefix that is not all in the tree it is the end that is not
            blocks = [block for block in blocks if block.parent is not None]
            if not blocks:
                return
        if account.watch is not None:
            account.watch.use(sample.of(blocks))
            account.watch.judge()
        num_prompt_blocks = outcome.prompt_tokens // self._block_size
        place = 0
        if account.curve is not None:
            num_asked = 0 if outcome.is_repeat else min(num_prompt_blocks, len(blocks))
            place = account.curve.use(blocks, num_asked, self._clock.monotonic_s())
        parts = account.policy.uses(outcome, blocks, num_prompt_blocks, self._clock.monotonic_s())
        self._num_uses += 1
        start = 0
        for each in parts:
            use, end = each.use, each.end
            use.order, use.place = self._num_uses, place
            for block in blocks[start:end]:
                block.use = use
            start = end
        assert start == len(blocks), "every block has a use"

    def elsewhere(self, account: Account, use: Use | None, time_s: float) -> Use:
        """Of blocks that were used at a time in another pool, and here as `use` says, if ever."""
        if use is None:
            moved = account.policy.unknown_use(time_s)
        else:
            moved = Use(time_s, use.class_id, use.num_tokens, use.turn, use.session, use.expires_s)
            moved.place = use.place
        self._num_uses += 1
        moved.order = self._num_uses
        return moved

    def unknown(self, account: Account) -> Use:
        """Of blocks of which nobody said how they were used."""
        use = account.policy.unknown_use(self._clock.monotonic_s())
        self._num_uses += 1
        use.order = self._num_uses
        return use
