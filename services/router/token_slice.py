"""Tokens of one tenant's rate that this router has taken and not used, or has used and not paid. Pure.

While the store is away, a bucket of the router's own goes on at the router's share of the rate. Owned by one event
loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.domain import TenantId
from cache_store.limit_store import TokenAsk, TokenGrant
from cache_store.token_bucket import TokenBucket

SPARE_S = 0.05
"""What all routers together keep for requests to come, as seconds of the rate; for a moment twice that."""

IDLE_S = 0.5
"""A tenant that has not asked for that long keeps nothing."""

MIN_RETRY_S = 0.01

MAX_CLOSED_S = 0.2
"""For so long at most the store is not asked again after it had no tokens: others may give some back meanwhile."""

_SMOOTHING = 0.2


class TokenSlice:
    """State of one tenant at one router."""

    __slots__ = ("_closed_until_s", "_expected_made", "_own", "_paid_s", "balance", "num_metered", "used_s")

    def __init__(self, now_s: float) -> None:
        self.balance = 0
        """Below zero: used and not paid."""
        self.num_metered = 0
        """Requests that run and may still spend or give back."""
        self.used_s = 0.0
        """When a request last asked."""
        self._paid_s = now_s
        self._closed_until_s = now_s
        self._own = TokenBucket(now_s)
        self._expected_made: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to pay or to give back."""
        return self.balance != 0

    def take(self, cost: int) -> bool:
        """Takes tokens that are at hand."""
        if self.balance < cost:
            return False
        self.balance -= cost
        return True

    def take_alone(self, cost: int, rate: float, now_s: float) -> bool:
        """Takes tokens of the router's own bucket; what is owed is paid from it first."""
        spent, self.balance = -self.balance, 0
        return self._own.take(rate, spent, (cost,), 0, now_s).num_admitted == 1

    def retry_alone_s(self, rate: float, now_s: float) -> float:
        """Seconds until the router's own bucket admits again."""
        return max(MIN_RETRY_S, -self._own.level(rate, now_s) / rate)

    def ask(self, tenant: TenantId, rate: int, costs: Sequence[int], num_routers: int, now_s: float) -> TokenAsk | None:
        """What to ask for; None: nothing. What is paid or given back is off the balance here and now."""
        spare = self._num_kept(rate, num_routers, now_s)
        if costs or self.balance < 0:
            spent, self.balance = -self.balance, 0
            return TokenAsk(tenant, rate, spent, tuple(costs), spare)
        if self.balance > spare:
            spent, self.balance = spare - self.balance, spare
            return TokenAsk(tenant, rate, spent, (), 0)
        return None

    def has_excess(self, rate: int, num_routers: int, now_s: float) -> bool:
        """Whether it owes, or has so much that some is to be given back before the next renewal."""
        return not 0 <= self.balance <= 2 * self._num_kept(rate, num_routers, now_s)

    def _num_kept(self, rate: int, num_routers: int, now_s: float) -> int:
        return 0 if now_s - self.used_s >= IDLE_S else int(rate * SPARE_S / num_routers)

    def take_grant(self, grant: TokenGrant, rate: int, now_s: float) -> None:
        """The store's answer."""
        self.balance += grant.spare
        if grant.level <= 0:
            wait_s = max(MIN_RETRY_S, -grant.level / rate)
            self._paid_s = now_s + wait_s
            self._closed_until_s = now_s + min(wait_s, MAX_CLOSED_S)

    def was_not_answered(self, ask: TokenAsk) -> None:
        """Whether it was paid is unknown: paid twice at worst. What was given back is not taken again."""
        self.balance -= max(0, ask.spent)

    def is_closed(self, now_s: float) -> bool:
        """Whether the store had nothing a moment ago."""
        return now_s < self._closed_until_s

    def retry_s(self, now_s: float) -> float:
        """Seconds until there should be tokens again."""
        return max(MIN_RETRY_S, self._paid_s - now_s)

    def spend(self, tokens: int) -> None:
        """More was used than had been taken; negative: less."""
        self.balance -= tokens
        if tokens < 0:
            self._closed_until_s = 0.0

    def expected_made(self, most: int) -> int:
        """Tokens that a request will make, judged by those before; at first as many as it may."""
        return most if self._expected_made is None else min(most, round(self._expected_made))

    def learn_made(self, made: int) -> None:
        """A request has ended."""
        before = made if self._expected_made is None else self._expected_made
        self._expected_made = before + _SMOOTHING * (made - before)
