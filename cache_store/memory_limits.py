"""Limits in memory: for routers of one process, and the oracle of the contract suite."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.limit_store import (
    PLACES_LEASE_S,
    Exchange,
    PlaceAsk,
    PlaceGrant,
    RouterId,
    StoreView,
    TokenAsk,
    TokenGrant,
)
from cache_store.token_bucket import TokenBucket


@dataclass(frozen=True, slots=True)
class _Lease:
    number: int
    granted: int
    held: int
    needed: int
    ends_s: float


class MemoryLimitStore:
    """LimitStore of one event loop."""

    def __init__(self, clock: Clock, lease_s: float = PLACES_LEASE_S) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self.wipe()

    def wipe(self) -> None:
        """Forgets everything, as a store that is started again without its data."""
        self._birth = uuid.uuid4().hex
        self._routers: dict[RouterId, float] = {}
        self._places: dict[TenantId, dict[RouterId, _Lease]] = {}
        self._buckets: dict[TenantId, TokenBucket] = {}

    async def exchange(self, router: RouterId, places: Sequence[PlaceAsk], tokens: Sequence[TokenAsk]) -> Exchange:
        """See LimitStore."""
        now_s = self._clock.monotonic_s()
        self._routers[router] = now_s + self._lease_s
        self._routers = {name: ends_s for name, ends_s in self._routers.items() if ends_s > now_s}
        return Exchange(
            StoreView(len(self._routers), self._birth),
            tuple(self._lease(router, ask, now_s) for ask in places),
            tuple(self._take(ask, now_s) for ask in tokens),
        )

    def _lease(self, router: RouterId, ask: PlaceAsk, now_s: float) -> PlaceGrant:
        known = self._places.get(ask.tenant, {})
        others = {name: lease for name, lease in known.items() if name != router and lease.ends_s > now_s}
        before = known.get(router)
        if before is not None and before.ends_s > now_s and before.number >= ask.number:
            return _grant(before.granted, others)
        free = max(0, ask.limit - sum(lease.granted for lease in others.values()))
        granted = max(ask.held, min(ask.wanted, free))
        leases = self._places[ask.tenant] = dict(others)
        if granted or ask.needed:
            leases[router] = _Lease(ask.number, granted, ask.held, ask.needed, now_s + self._lease_s)
        return _grant(granted, others)

    def _take(self, ask: TokenAsk, now_s: float) -> TokenGrant:
        bucket = self._buckets.setdefault(ask.tenant, TokenBucket(now_s))
        taken = bucket.take(ask.tokens_per_s, ask.spent, ask.costs, ask.spare, now_s)
        return TokenGrant(taken.num_admitted, taken.spare, bucket.level(ask.tokens_per_s, now_s))


def _grant(granted: int, others: Mapping[RouterId, _Lease]) -> PlaceGrant:
    return PlaceGrant(
        granted,
        others_idle=sum(lease.granted - lease.held for lease in others.values()),
        others_want=any(lease.needed > lease.granted for lease in others.values()),
    )
