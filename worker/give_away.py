"""Which worker takes which prefix of one that leaves. Pure.

Prefixes that begin alike go to the same worker, as far as that does not give it much more than the others; hot ones are
placed first. A strict tenant's go to all: where its requests will go follows from what they ask for, which only routers
know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache_store.digest import Digest, chain
from cache_store.domain import TenantId
from cache_store.hot_prefixes import HotPrefix

NEW_WEIGHT = 4
"""A block that a worker has to take anew counts as much as so many that it was given before."""


def shares(
    prefixes: Sequence[HotPrefix], num_workers: int, block_size: int, is_strict: Callable[[TenantId], bool]
) -> list[list[HotPrefix]]:
    """The prefixes for each of `num_workers`, in the order of `prefixes`."""
    given: list[list[HotPrefix]] = [[] for _ in range(num_workers)]
    held: list[set[Digest]] = [set() for _ in range(num_workers)]
    for prefix in prefixes:
        blocks = set(chain(prefix.domain, prefix.tokens, block_size))
        if is_strict(prefix.domain.tenant):
            takers: Sequence[int] = range(num_workers)
        else:
            takers = (min(range(num_workers), key=lambda at: len(held[at]) + NEW_WEIGHT * len(blocks - held[at])),)
        for taker in takers:
            given[taker].append(prefix)
            held[taker] |= blocks
    return given
