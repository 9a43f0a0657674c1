"""In which order one tenant's blocks leave a lower tier: copies first, then what its policy values least.

The policy is the one of the device, which learns from all demand; where it is known to do worse than LRU, the order is
LRU's here too. Owned by the tier.
"""

from __future__ import annotations

from cache_store.account import Account
from cache_store.eviction_queue import EvictionQueue
from cache_store.lower_block import Stay
from cache_store.policy import WORTHLESS, Use


class Order:
    """Of one tenant in one tier."""

    __slots__ = ("account", "copies", "device", "queue")

    def __init__(self, account: Account, device: Account) -> None:
        self.account = account
        """What the tenant has in the tier."""
        self.device = device
        """The tenant's account there, whose policy decides."""
        self.queue: EvictionQueue[Stay] = EvictionQueue()
        """Sole stays without children that nothing refers to."""
        self.copies: dict[Stay, None] = {}
        """That nothing refers to. The latest go first: what the device has used lately it will keep longest."""

    def pop_least(self, now_s: float) -> Stay | None:
        """Takes out the sole stay that is worth least."""
        if self.prefers_lru:
            return self.queue.pop_oldest()
        return self.queue.pop_least(self.device.policy.value, now_s)

    @property
    def prefers_lru(self) -> bool:
        """Whether the policy does worse than LRU."""
        return self.device.watch is not None and self.device.watch.prefers_lru

    def is_wanted(self, use: Use, now_s: float) -> bool:
        """Whether blocks of that use may ever be used again."""
        if use.expires_s <= now_s:
            return False
        return self.device.policy.value(use.class_id, now_s - use.time_s) > WORTHLESS

    def gives_way(self, stay: Stay, other: Use, now_s: float) -> bool:
        """Whether a stay is worth no more than blocks of another use."""
        use = stay.use
        assert use is not None
        if not self.prefers_lru:
            value = self.device.policy.value
            mine, others = value(use.class_id, now_s - use.time_s), value(other.class_id, now_s - other.time_s)
            if mine != others:
                return mine < others
        return (use.time_s, use.order) <= (other.time_s, other.order)
