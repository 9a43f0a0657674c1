"""Who pays for a new block. Pure functions over the accounts of a pool.

Never a tenant at or below its guarantee; else the one whose excess over its guarantee is the largest for its weight,
the tenant that asks included. What a strict tenant has not used of its guarantee is kept free for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cache_store.account import Account


@dataclass(frozen=True, slots=True)
class Charge:
    """Blocks that one account has to evict."""

    payer: Account
    num_blocks: int


def num_available(asking: Account, accounts: Iterable[Account], num_unused: int) -> int:
    """Blocks that `asking` could be granted now."""
    reserved = others = 0
    for account in accounts:
        if account is not asking:
            reserved += account.reserve
            others += account.reclaimable
    within_pool = max(0, num_unused - reserved) + asking.num_cached + others
    return max(0, min(asking.maximum - asking.num_held, within_pool))


def num_attainable(asking: Account, accounts: Iterable[Account], num_blocks: int) -> int:
    """Blocks that `asking` could have in a pool of `num_blocks` if nobody else held any beyond its guarantee."""
    kept = 0
    for account in accounts:
        if account is not asking:
            kept += account.minimum if account.strict else min(account.protected, account.num_used)
    return max(0, min(asking.maximum, num_blocks - kept))


def charge(asking: Account, num_blocks: int, num_missing: int, accounts: Iterable[Account]) -> Charge:
    """Who evicts next, and how many, where `asking` gets `num_blocks` in all and `num_missing` slots are to be made.

    Something must be evictable. The payer pays until another one's excess is the largest.
    """
    payer, largest, second = asking, -math.inf, -math.inf
    for account in accounts:
        if account is asking:
            excess = (account.num_used + num_blocks - account.protected) / account.weight
            may_pay = account.num_cached > 0 and excess > 0
        else:
            excess = (account.num_used - account.protected) / account.weight
            may_pay = account.reclaimable > 0
        if not may_pay:
            continue
        if excess > largest:
            payer, largest, second = account, excess, largest
        elif excess > second:
            second = excess
    # Nobody is above its guarantee: what is missing is held by others, and `asking` makes room among its own.
    most = asking.num_cached if payer is asking else payer.reclaimable
    if second > -math.inf:
        most = min(most, math.floor((largest - second) * payer.weight) + 1)
    assert most > 0, "nothing can be evicted"
    return Charge(payer, min(num_missing, most))
