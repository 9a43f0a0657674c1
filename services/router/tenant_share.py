"""One tenant's limits at one router: what is at hand, who waits for more, and what an exchange brings them.

Knows no store and waits for nothing itself. Owned by one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from cache_store.domain import TenantId
from cache_store.limit_store import PlaceAsk, PlaceGrant, TokenAsk, TokenGrant
from services.router.place_slice import PlaceSlice, local_share
from services.router.token_slice import TokenSlice
from services.tenants.model import NO_LIMITS

MAX_COSTS_PER_ASK = 64

PATIENCE_S = 1.0
"""How long a request waits for places that other routers do not use, or for a store that does not answer."""

NEWS_S = 0.15
"""How long a request waits where others have all places: one may be free already and not given back yet."""

PLACE_RETRY_S = 1.0
"""Nobody knows when a request ends."""

ADMITTED_S = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A request that waits. `verdict` is ADMITTED_S, or the seconds after which to come again."""

    verdict: asyncio.Future[float]
    since_s: float
    cost: int = 0


class TenantShare:
    """State of one tenant."""

    def __init__(self, tenant: TenantId, now_s: float) -> None:
        self.tenant = tenant
        self.limits = NO_LIMITS
        """As the last request brought them."""
        self.places = PlaceSlice()
        self.tokens = TokenSlice(now_s)
        self.place_waiters: deque[Waiter] = deque()
        self.token_waiters: deque[Waiter] = deque()
        self.due_s = now_s
        """When an exchange is to concern it again, if anything is to be told then."""
        self._num_asked = 0

    @property
    def has_waiters(self) -> bool:
        """Whether requests wait for an exchange."""
        return bool(self.place_waiters or self.token_waiters)

    @property
    def has_news(self) -> bool:
        """Whether the store has to be told something, or asked."""
        return self.has_waiters or self.places.is_due or self.tokens.is_due

    def is_forgettable(self, now_s: float, after_s: float) -> bool:
        """Whether nothing of it matters any more."""
        return (
            not (self.has_news or self.tokens.num_metered)
            and now_s - max(self.places.used_s, self.tokens.used_s) >= after_s
        )

    def hand_on(self, limit: int, most: int, num_routers: int) -> None:
        """Gives places that got free here to requests that wait here."""
        while self.place_waiters:
            if self.place_waiters[0].verdict.done():
                self._drop_place_waiter()
            elif self.places.may_hand_on(limit, num_routers) and self.places.take(most):
                self._drop_place_waiter().verdict.set_result(ADMITTED_S)
            else:
                return

    def _drop_place_waiter(self) -> Waiter:
        self._num_asked = max(0, self._num_asked - 1)
        return self.place_waiters.popleft()

    def ask_places(self, num_routers: int, now_s: float) -> PlaceAsk | None:
        """What to ask for, if anything."""
        limit = self.limits.requests_in_flight
        if limit is None:
            self.places.forget_lease()
            for waiter in _emptied(self.place_waiters):
                self.places.in_use += 1
                waiter.verdict.set_result(ADMITTED_S)
            return None
        if not (self.place_waiters or self.places.is_due):
            return None
        self._num_asked = len(self.place_waiters)
        return self.places.ask(self.tenant, limit, self._num_asked, num_routers, now_s)

    def take_places(self, ask: PlaceAsk, grant: PlaceGrant, most: int, now_s: float) -> None:
        """The answer to `ask`. At most `most` may be in use, whatever was granted."""
        self.places.take_grant(ask, grant)
        patience_s = _patience_s(ask, grant, most)
        patient: list[Waiter] = []
        for _ in range(self._num_asked):
            waiter = self.place_waiters.popleft()
            if waiter.verdict.done():
                continue
            if self.places.take(most):
                waiter.verdict.set_result(ADMITTED_S)
            elif now_s - waiter.since_s < patience_s:
                patient.append(waiter)
            else:
                waiter.verdict.set_result(PLACE_RETRY_S)
        self.place_waiters.extendleft(reversed(patient))

    def ask_tokens(self, num_routers: int, now_s: float) -> TokenAsk | None:
        """What to ask for, if anything."""
        rate = self.limits.tokens_per_s
        if rate is None:
            self.tokens.balance = 0
            for waiter in _emptied(self.token_waiters):
                waiter.verdict.set_result(ADMITTED_S)
            return None
        while self.token_waiters and self.token_waiters[0].verdict.done():
            self.token_waiters.popleft()
        costs = [waiter.cost for waiter in self.token_waiters][:MAX_COSTS_PER_ASK]
        return self.tokens.ask(self.tenant, rate, costs, num_routers, now_s)

    def take_tokens(self, ask: TokenAsk, grant: TokenGrant, now_s: float) -> None:
        """The answer to `ask`."""
        self.tokens.take_grant(grant, ask.tokens_per_s, now_s)
        for at, cost in enumerate(ask.costs):
            waiter = self.token_waiters.popleft()
            if at >= grant.num_admitted:
                if not waiter.verdict.done():
                    waiter.verdict.set_result(self.tokens.retry_s(now_s))
            elif waiter.verdict.done():
                self.tokens.spend(-cost)
            else:
                waiter.verdict.set_result(ADMITTED_S)

    def go_alone(self, num_routers: int, now_s: float) -> None:
        """The store is away: everybody who waits is told by this router's share."""
        self.places.forget_lease()
        limit, rate = self.limits.requests_in_flight, self.limits.tokens_per_s
        for waiter in _emptied(self.place_waiters):
            is_admitted = limit is None or self.places.take_unleased(local_share(limit, num_routers))
            waiter.verdict.set_result(ADMITTED_S if is_admitted else PLACE_RETRY_S)
        for waiter in _emptied(self.token_waiters):
            waiter.verdict.set_result(ADMITTED_S if rate is None else self._alone_s(waiter, rate / num_routers, now_s))

    def _alone_s(self, waiter: Waiter, own_rate: float, now_s: float) -> float:
        is_admitted = self.tokens.take_alone(waiter.cost, own_rate, now_s)
        return ADMITTED_S if is_admitted else self.tokens.retry_alone_s(own_rate, now_s)


def _patience_s(ask: PlaceAsk, grant: PlaceGrant, most: int) -> float:
    if grant.others_idle or most < ask.limit:
        return PATIENCE_S
    return NEWS_S if grant.granted < ask.limit else 0.0


def _emptied(waiters: deque[Waiter]) -> list[Waiter]:
    present = [waiter for waiter in waiters if not waiter.verdict.done()]
    waiters.clear()
    return present
