"""Room for blocks that another worker gives away, and their place in the order: nothing goes that was used later.

Within its tenant's guarantee such a block is like one that is computed. Beyond, it takes unused slots, or those of
cached blocks whose last use was longer ago than its own: of whom `cache_store/lending.py` charges for a block of the
tenant, and what those do not have, of the tenant itself. So two caches become one, in which each tenant keeps what it
used last. Owned by the pool, whose accounts and unused blocks it works on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cache_store.account import Account
from cache_store.domain import Domain
from cache_store.eviction import Evictions
from cache_store.ledger import Ledger
from cache_store.lending import Need, charges
from cache_store.policy import Use
from cache_store.prefix_tree import Block
from cache_store.uses import Uses

_Take = Callable[[Account, int], int]
"""Counts, or evicts, at most as many of an account's blocks that were used earlier; how many there were."""


class Adoptions:
    """Of one pool. Times are of its clock."""

    def __init__(self, ledger: Ledger, unused: list[Block], evictions: Evictions, uses: Uses) -> None:
        self._ledger = ledger
        self._unused = unused
        self._evictions = evictions
        self._uses = uses

    def num_room(self, domain: Domain, num_blocks: int, used_s: float) -> int:
        """How many of `num_blocks`, last used at a time, would have room; changes nothing."""
        account = self._ledger.of(domain.tenant)
        return num_blocks - self._num_short(
            account, num_blocks, lambda payer, most: self._evictions.num_older(payer, most, used_s)
        )

    def make_room(self, domain: Domain, num_blocks: int, used_s: float) -> int:
        """Evicts for `num_blocks`, no more than are available to the domain; for how many there are unused ones now."""
        account = self._ledger.of(domain.tenant)
        self._evictions.make_room(account, _num_due(account, num_blocks))
        return num_blocks - self._num_short(
            account, num_blocks, lambda payer, most: self._evictions.evict_older(payer, most, used_s, account)
        )

    def date(self, blocks: Sequence[Block], used_s: float) -> None:
        """Blocks of one domain, which the caller holds, were used at a time elsewhere.

        What somebody else holds as well, was used later, or has a time to live stays as it is; so does all where
        the time is not known (minus infinity).
        """
        if used_s == -math.inf:
            return
        dated: dict[Use | None, Use] = {}
        for block in blocks:
            use = block.use
            if block.ref_count > 1 or (use is not None and (use.time_s >= used_s or use.expires_s < math.inf)):
                continue
            if use not in dated:
                dated[use] = self._uses.elsewhere(self._ledger.of(block.tenant), use, used_s)
            block.use = dated[use]

    def _num_short(self, account: Account, num_blocks: int, take: _Take) -> int:
        num_due = _num_due(account, num_blocks)
        num_free = max(0, account.num_kept + self._ledger.num_free(len(self._unused)) - num_due)
        num_over = max(0, account.num_used + num_blocks - account.maximum)
        num_missing = max(num_over, num_blocks - num_due - num_free)
        if num_missing <= 0:
            return 0
        due = charges(num_missing - num_over, self._ledger.present, Need(account, num_blocks))
        num_missing -= sum(take(each.payer, each.num_blocks) for each in due if each.payer is not account)
        return num_missing - take(account, num_missing)


def _num_due(account: Account, num_blocks: int) -> int:
    """How many of so many more would lie within the account's guarantee."""
    return max(0, min(num_blocks, account.minimum - account.num_used))
