"""Places of one tenant's limit on requests in flight that this router has, and how many it asks for. Pure.

Idle places are kept for requests to come: a small part of the limit over all routers, and only while the tenant sends
requests and no other router lacks places. Where routers want more than there is, each keeps its part of the limit and
the rest goes from hand to hand. Owned by one event loop.
"""

from __future__ import annotations

from cache_store.domain import TenantId
from cache_store.limit_store import PlaceAsk, PlaceGrant

IDLE_PART = 16
"""All routers together keep one such part of a limit idle, for a moment twice that."""

IDLE_S = 0.5
"""A tenant that has not asked for that long keeps nothing idle."""


class PlaceSlice:
    """State of one tenant at one router."""

    __slots__ = ("_num_asks", "_others_want", "granted", "in_use", "lacks", "used_s")

    def __init__(self) -> None:
        self.in_use = 0
        self.granted = 0
        """Leased; fewer than are in use only where the store was away or has lost them."""
        self.used_s = 0.0
        """When a request last asked."""
        self.lacks = False
        """Whether the store had fewer than it needed."""
        self._others_want = False
        self._num_asks = 0

    @property
    def is_due(self) -> bool:
        """Whether the store has to be told something, a renewal at least."""
        return bool(self.granted or self.in_use or self.lacks)

    def take(self, most: int) -> bool:
        """Takes a place that is at hand; `most` bounds what is in use, whatever was granted."""
        if self.in_use >= min(self.granted, most):
            return False
        self.in_use += 1
        return True

    def take_unleased(self, most: int) -> bool:
        """Takes a place without a lease, where fewer than `most` are in use."""
        if self.in_use >= most:
            return False
        self.in_use += 1
        return True

    def give_back(self) -> None:
        """A request ended."""
        assert self.in_use > 0, "a place was given back twice"
        self.in_use -= 1

    def ask(self, tenant: TenantId, limit: int, num_waiting: int, num_routers: int, now_s: float) -> PlaceAsk:
        """What to ask for. Idle places beyond it are given up here and now, so that nobody takes them meanwhile."""
        needed = self.in_use + num_waiting
        if self._others_want:
            wanted = min(needed, max(self.in_use, limit // num_routers + 1))
        else:
            wanted = needed + self._num_kept(limit, num_routers, now_s)
        self.granted = min(self.granted, wanted)
        self._num_asks += 1
        return PlaceAsk(tenant, self._num_asks, limit, self.in_use, needed, wanted)

    def may_hand_on(self, limit: int, num_routers: int) -> bool:
        """Whether a place that got free here goes to the next request that waits here: always within this router's part
        of the limit, beyond it where no other router lacks places."""
        return self.in_use + 1 <= limit // num_routers or not self._others_want

    def has_excess(self, limit: int, num_routers: int, now_s: float) -> bool:
        """Whether it has so many idle places that some are to be given back before the next renewal."""
        return self.granted - self.in_use > 2 * self._num_kept(limit, num_routers, now_s)

    def _num_kept(self, limit: int, num_routers: int, now_s: float) -> int:
        if self._others_want or now_s - self.used_s >= IDLE_S:
            return 0
        return limit // (IDLE_PART * num_routers)

    def take_grant(self, ask: PlaceAsk, grant: PlaceGrant) -> None:
        """The store's answer."""
        self.granted = grant.granted
        self.lacks = ask.needed > grant.granted
        self._others_want = grant.others_want

    def forget_lease(self) -> None:
        """The store is away: what it granted is no longer relied on."""
        self.granted = 0
        self.lacks = False
        self._others_want = False


def local_share(limit: int, num_routers: int) -> int:
    """What a router takes of a limit without asking; 1 at least, and never more than the limit."""
    return max(1, limit // num_routers)
