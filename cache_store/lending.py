"""Who pays for new blocks. Pure functions over the accounts of a pool.

Never a tenant at or below its guarantee; else the one whose excess over its guarantee is the largest for its weight,
the tenant that asks included. What a strict tenant has not used of its guarantee is kept free for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from cache_store.account import Account


@dataclass(frozen=True, slots=True)
class Charge:
    """Blocks that one account has to evict."""

    payer: Account
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Need:
    """Blocks that an account asks for."""

    asking: Account
    num_blocks: int


def num_available(asking: Account, accounts: Iterable[Account], num_unused: int) -> int:
    """Blocks that `asking` could be granted now."""
    kept = others = 0
    for account in accounts:
        if account is not asking:
            kept += account.num_kept
            others += account.reclaimable
    within_pool = num_unused - kept + asking.num_cached + others
    return max(0, min(asking.maximum - asking.num_held, within_pool))


def num_attainable(asking: Account, accounts: Iterable[Account], num_blocks: int) -> int:
    """Blocks that `asking` could have in a pool of `num_blocks` if nobody else held any beyond its guarantee."""
    kept = 0
    for account in accounts:
        if account is not asking:
            kept += account.minimum if account.strict else min(account.protected, account.num_used)
    return max(0, min(asking.maximum, num_blocks - kept))


def charges(num_missing: int, accounts: Iterable[Account], need: Need | None) -> list[Charge]:
    """Who evicts how many, so that `num_missing` slots come free; fewer where no more may be taken.

    `need` says for whom, and counts as if it were granted; None: what a strict tenant is to have back. Where nobody is
    above its guarantee, what is missing is held by others, and the asking tenant makes room among its own.
    """
    payers: list[tuple[Account, int, int]] = []
    for account in accounts:
        excess = account.num_used - account.protected
        if need is not None and account is need.asking:
            excess += need.num_blocks
        if excess > 0 and account.num_cached:
            payers.append((account, excess, min(excess, account.num_cached)))
    paid = _shared_out(num_missing, payers)
    due = [Charge(account, number) for (account, _, _), number in zip(payers, paid, strict=True) if number]
    rest = num_missing - sum(paid)
    if rest and need is not None:
        due.append(Charge(need.asking, rest))
    return due


def _shared_out(num_missing: int, payers: list[tuple[Account, int, int]]) -> list[int]:
    """How much each pays: always the one with the largest excess per weight, until another's is larger, or its limit.

    `payers` are accounts with their excess and what they can pay at most.
    """
    if len(payers) == 1:
        return [min(num_missing, payers[0][2])]
    paid = [0] * len(payers)
    queue = [(-excess / account.weight, number) for number, (account, excess, _) in enumerate(payers)]
    heapify(queue)
    while num_missing > 0 and queue:
        largest, number = queue[0]
        account, excess, most = payers[number]
        second = min((each[0] for each in queue[1:3]), default=math.inf)
        run = most - paid[number]
        if second < math.inf:
            run = min(run, math.floor((second - largest) * account.weight) + 1)
        run = min(run, num_missing)
        paid[number] += run
        num_missing -= run
        if paid[number] < most:
            heapreplace(queue, ((paid[number] - excess) / account.weight, number))
        else:
            heappop(queue)
    return paid
