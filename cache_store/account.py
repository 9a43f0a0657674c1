"""One tenant's part of a pool: what it has, what it is guaranteed, and the order in which its blocks go.

State only; the pool decides who pays for a block (`cache_store/lending.py`) and moves it.
"""

from __future__ import annotations

from cache_store.domain import TenantId
from cache_store.eviction_queue import EvictionQueue
from cache_store.policy import EvictionPolicy
from cache_store.prefix_tree import Block
from cache_store.quota import TenantQuota, TierShare
from cache_store.reuse_curve import ReuseCurve
from cache_store.shadow import Watch


class Account:
    """Owned by the pool."""

    __slots__ = (
        "curve",
        "is_closed",
        "maximum",
        "minimum",
        "num_cached",
        "num_caused",
        "num_evicted",
        "num_evicted_for_others",
        "num_held",
        "num_kept",
        "policy",
        "queue",
        "strict",
        "tenant",
        "watch",
        "weight",
    )

    def __init__(self, tenant: TenantId, policy: EvictionPolicy) -> None:
        self.tenant = tenant
        self.policy = policy
        self.queue: EvictionQueue[Block] = EvictionQueue()
        self.num_held = 0
        self.num_cached = 0
        self.num_evicted = 0
        self.num_evicted_for_others = 0
        self.num_caused = 0
        """Others' blocks that were evicted to make room for it."""
        self.num_kept = 0
        """Unused slots that nobody else gets: a strict tenant's guarantee is never lent."""
        self.minimum = 0
        """Blocks that it is guaranteed."""
        self.maximum = 0
        """Blocks that it may have."""
        self.is_closed = False
        """Its tenant is deleted: the account is forgotten when it has no blocks any more."""
        self.weight = 1.0
        self.strict = False
        self.watch: Watch | None = None
        """Of a tenant with a guarantee."""
        self.curve: ReuseCurve | None = None
        """How often it would hit with more or less room; None where that is not followed."""

    @property
    def num_used(self) -> int:
        """Blocks that it has."""
        return self.num_held + self.num_cached

    @property
    def lends_guarantee(self) -> bool:
        """Whether its guaranteed blocks are lent too, because they bring it nothing."""
        return self.watch is not None and self.watch.is_useless and not self.strict

    @property
    def protected(self) -> int:
        """Blocks that are not taken for others."""
        return 0 if self.lends_guarantee else self.minimum

    @property
    def reclaimable(self) -> int:
        """Cached blocks that may be taken for others."""
        return max(0, min(self.num_cached, self.num_used - self.protected))

    @property
    def num_to_keep(self) -> int:
        """Unused slots that should be kept for it."""
        return max(0, self.minimum - self.num_used) if self.strict else 0

    def take_quota(self, quota: TenantQuota, share: TierShare, num_blocks: int) -> None:
        """Other bounds from now on. Guarantees are rounded down, so that their sum fits; a strict maximum likewise."""
        self.weight = quota.weight
        self.strict = share.is_strict
        self.minimum = share.guaranteed_blocks(num_blocks)
        self.maximum = share.most_blocks(num_blocks)
        self.num_kept = min(self.num_kept, self.num_to_keep)

    def evict_least(self, now_s: float) -> Block | None:
        """Takes out the leaf that is worth least; the oldest, where the policy does worse than LRU."""
        if self.watch is not None and self.watch.prefers_lru:
            return self.queue.pop_oldest()
        return self.queue.pop_least(self.policy.value, now_s)

    def take_slots(self, num_blocks: int) -> None:
        """It holds that many more blocks; those that were kept for it come first."""
        self.num_held += num_blocks
        self.num_kept -= min(self.num_kept, num_blocks)

    def lose_cached(self, num_blocks: int) -> None:
        """That many of its cached blocks have become unused."""
        self.num_cached -= num_blocks
        if self.strict:
            self.give_slots(num_blocks)

    def give_slots(self, num_blocks: int) -> None:
        """That many blocks, which it has no more, have become unused. A strict tenant's stay its own."""
        if self.strict:
            self.num_kept = min(self.num_kept + num_blocks, self.num_to_keep)
