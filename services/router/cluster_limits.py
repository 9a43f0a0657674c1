"""Limits of a tenant that hold over all routers: requests in flight, and tokens per second.

A request that finds a place and tokens at hand goes on at once. Otherwise it waits for the next exchange with the store
that the routers share (`cache_store/limit_store.py`). One task makes all exchanges of this router, so that no ask
overtakes another, and any number of requests and tenants go into one. What a tenant is refused follows from what it
uses itself. While the store is away, or has lost its data and not all routers have told it again what they hold, this
router goes on with its share of each limit and says `degraded`. Owned by one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.errors import LimitExceededError, UnavailableError
from cache_store.limit_store import (
    PLACES_LEASE_S,
    Exchange,
    LimitStore,
    LimitStoreUnavailableError,
    PlaceAsk,
    RouterId,
    StoreView,
    TokenAsk,
)
from services.router.outage import Outage
from services.router.place_slice import local_share
from services.router.tenant_share import ADMITTED_S, PATIENCE_S, PLACE_RETRY_S, TenantShare, Waiter
from services.router.token_meter import TokenMeter
from services.tenants.model import NO_LIMITS, Tenant

RENEW_S = 0.5
"""Between exchanges that nobody waits for."""

BATCH_S = 0.01
"""What is given back or paid waits so long for more of it."""

RETRY_S = 0.05
"""Between exchanges while requests wait on."""

SETTLE_S = 3 * RENEW_S
"""After so long all routers have told a store that lost its data what they hold."""

VERDICT_DEADLINE_S = 3 * PATIENCE_S
FORGET_S = 300.0
MAX_TENANTS_PER_EXCHANGE = 256

PLACES = "requests in flight"
TOKENS = "tokens per second"

_Ask = TypeVar("_Ask")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TokenNeed:
    """What a request is expected to cost."""

    uncached_tokens: int
    """Prompt tokens that the index promises nowhere."""
    max_made: int
    """Tokens that it may make, over all samples."""


class ClusterLimits:
    """This router's part of all limits."""

    def __init__(self, store: LimitStore, router: RouterId, clock: Clock) -> None:
        self._store = store
        self._router = router
        self._clock = clock
        self._shares: dict[TenantId, TenantShare] = {}
        self._outage = Outage("limits")
        self._birth: str | None = None
        self._num_routers = 1
        self._failing_s = self._settled_s = self._due_s = self._leased_s = clock.monotonic_s()
        self._wake = asyncio.Event()

    @property
    def is_degraded(self) -> bool:
        """Whether this router keeps to its share of each limit, because it cannot know what others use."""
        return self._is_away or self._is_settling

    @property
    def due_s(self) -> float:
        """When `run` makes the next exchange, by the clock."""
        return self._due_s

    def place(self, tenant: Tenant) -> AbstractAsyncContextManager[None]:
        """One of the tenant's requests in flight, for as long as the block runs.

        Raises LimitExceededError, also where the tenant's tokens are known to be used up: then nothing else of the
        request has to be looked at.
        """
        return nullcontext() if tenant.limits == NO_LIMITS else self._place(tenant)

    def tokens(self, tenant: Tenant, need: TokenNeed) -> AbstractAsyncContextManager[TokenMeter]:
        """Tokens for one request, and the meter that corrects them. Raises LimitExceededError."""
        rate = tenant.limits.tokens_per_s
        return nullcontext(TokenMeter(0, 0, _nothing)) if rate is None else self._tokens(tenant, need, rate)

    @asynccontextmanager
    async def _place(self, tenant: Tenant) -> AsyncIterator[None]:
        share = self._share(tenant)
        self._require_tokens(share)
        limit = tenant.limits.requests_in_flight
        if limit is None:
            yield
            return
        await self._take_place(share, limit)
        try:
            yield
        finally:
            share.places.give_back()
            share.hand_on(limit, self._most(limit), self._num_routers)
            if share.places.has_excess(limit, self._num_routers, self._clock.monotonic_s()):
                self._ask_within(share, BATCH_S)

    @asynccontextmanager
    async def _tokens(self, tenant: Tenant, need: TokenNeed, rate: int) -> AsyncIterator[TokenMeter]:
        share = self._share(tenant)
        made = share.tokens.expected_made(need.max_made)
        await self._take_tokens(share, need.uncached_tokens + made, rate)
        meter = TokenMeter(need.uncached_tokens, made, partial(self._spend, share, rate))
        share.tokens.num_metered += 1
        try:
            yield meter
        except BaseException as error:
            meter.end(error)
            raise
        else:
            meter.end(None)
        finally:
            share.tokens.num_metered -= 1
            if meter.made:
                share.tokens.learn_made(meter.made)

    async def run(self) -> None:
        """Makes exchanges until cancelled."""
        while True:
            await self._until_due()
            await self.exchange()

    async def exchange(self) -> None:
        """One exchange, for everything that is due. Never two at once."""
        now_s = self._clock.monotonic_s()
        due = self._take_due(now_s)
        places = _present(share.ask_places(self._num_routers, now_s) for share in due)
        tokens = _present(share.ask_tokens(self._num_routers, now_s) for share in due)
        try:
            answer = await self._store.exchange(self._router, places, tokens)
        except LimitStoreUnavailableError as error:
            self._failed(str(error), tokens)
        else:
            self._answered(answer, places, tokens)
        now_s = self._clock.monotonic_s()
        for share in due:
            if share.has_waiters:
                share.due_s = min(share.due_s, now_s + RETRY_S)
        news = (share.due_s for share in self._shares.values() if share.has_news)
        self._due_s = min(news, default=now_s + RENEW_S)
        self._due_s = min(self._due_s, now_s + RENEW_S)

    def check_invariants(self) -> None:
        """Raises AssertionError where more is in use than is known."""
        for tenant, share in self._shares.items():
            assert tenant == share.tenant, "a share is filed under another tenant"
            assert share.places.in_use >= 0

    @property
    def _is_away(self) -> bool:
        return self._outage.is_away and self._clock.monotonic_s() - self._failing_s >= PATIENCE_S

    @property
    def _is_settling(self) -> bool:
        return self._clock.monotonic_s() < self._settled_s

    def _share(self, tenant: Tenant) -> TenantShare:
        share = self._shares.get(tenant.id)
        if share is None:
            share = self._shares[tenant.id] = TenantShare(tenant.id, self._clock.monotonic_s())
        share.limits = tenant.limits
        return share

    def _most(self, limit: int) -> int:
        """What may be in use here, whatever was granted."""
        return local_share(limit, self._num_routers) if self.is_degraded else limit

    async def _take_place(self, share: TenantShare, limit: int) -> None:
        share.places.used_s = now_s = self._clock.monotonic_s()
        most = self._most(limit)
        if not share.place_waiters and now_s < self._leased_s and share.places.take(most):
            return
        if self._is_away:
            retry_s = ADMITTED_S if share.places.take_unleased(most) else PLACE_RETRY_S
        else:
            waiter = _waiter(0, now_s)
            share.place_waiters.append(waiter)
            self._ask_within(share, RETRY_S if share.places.lacks else 0.0)
            retry_s = await self._verdict(share, waiter, share.places.give_back)
        if retry_s:
            message = f"your tenant has {limit} requests in flight, which is its limit; wait for one to end"
            raise LimitExceededError(PLACES, message, retry_s)

    def _require_tokens(self, share: TenantShare) -> None:
        rate, now_s = share.limits.tokens_per_s, self._clock.monotonic_s()
        if rate is not None and share.tokens.is_closed(now_s) and not self._is_away:
            raise _no_tokens(rate, share.tokens.retry_s(now_s))

    async def _take_tokens(self, share: TenantShare, cost: int, rate: int) -> None:
        tokens = share.tokens
        tokens.used_s = now_s = self._clock.monotonic_s()
        if not share.token_waiters and tokens.take(cost):
            return
        if self._is_away:
            own = rate / self._num_routers
            retry_s = ADMITTED_S if tokens.take_alone(cost, own, now_s) else tokens.retry_alone_s(own, now_s)
        elif tokens.is_closed(now_s):
            retry_s = tokens.retry_s(now_s)
        else:
            waiter = _waiter(cost, now_s)
            share.token_waiters.append(waiter)
            self._ask_within(share, 0.0)
            retry_s = await self._verdict(share, waiter, partial(tokens.spend, -cost))
        if retry_s:
            raise _no_tokens(rate, retry_s)

    def _spend(self, share: TenantShare, rate: int, tokens: int) -> None:
        share.tokens.spend(tokens)
        if share.tokens.has_excess(rate, self._num_routers, self._clock.monotonic_s()):
            self._ask_within(share, BATCH_S)

    async def _verdict(self, share: TenantShare, waiter: Waiter, undo: Callable[[], None]) -> float:
        """What an exchange says; `undo` gives back what was granted to a request that is given up meanwhile."""
        try:
            async with asyncio.timeout(VERDICT_DEADLINE_S):
                return await waiter.verdict
        except BaseException as error:
            if waiter.verdict.done() and not waiter.verdict.cancelled() and waiter.verdict.result() == ADMITTED_S:
                undo()
                self._ask_within(share, BATCH_S)
            if isinstance(error, TimeoutError):
                raise UnavailableError("the limits cannot be checked now; try again", PLACE_RETRY_S) from None
            raise

    def _take_due(self, now_s: float) -> list[TenantShare]:
        """Shares that the exchange concerns, the longest due first; forgets those that do not matter any more."""
        for share in [each for each in self._shares.values() if each.is_forgettable(now_s, FORGET_S)]:
            del self._shares[share.tenant]
        due = [share for share in self._shares.values() if share.has_news and share.due_s <= now_s]
        due.sort(key=lambda share: share.due_s)
        for share in due[:MAX_TENANTS_PER_EXCHANGE]:
            share.due_s = now_s + RENEW_S
        return due[:MAX_TENANTS_PER_EXCHANGE]

    def _failed(self, reason: str, asks: Sequence[TokenAsk]) -> None:
        if not self._outage.is_away:
            self._failing_s = self._clock.monotonic_s()
        self._outage.failed(reason)
        for ask in asks:
            self._shares[ask.tenant].tokens.was_not_answered(ask)
        if self._is_away:
            now_s = self._clock.monotonic_s()
            for share in self._shares.values():
                share.go_alone(self._num_routers, now_s)

    def _answered(self, answer: Exchange, places: Sequence[PlaceAsk], tokens: Sequence[TokenAsk]) -> None:
        self._outage.succeeded()
        now_s = self._clock.monotonic_s()
        self._leased_s = now_s + PLACES_LEASE_S - PATIENCE_S
        self._see(answer.store, now_s)
        for place_ask, place_grant in zip(places, answer.places, strict=True):
            share = self._shares[place_ask.tenant]
            share.take_places(place_ask, place_grant, self._most(place_ask.limit), now_s)
        for token_ask, token_grant in zip(tokens, answer.tokens, strict=True):
            self._shares[token_ask.tenant].take_tokens(token_ask, token_grant, now_s)

    def _see(self, view: StoreView, now_s: float) -> None:
        if self._birth not in (None, view.birth):
            self._settled_s = now_s + SETTLE_S
            for share in self._shares.values():
                share.due_s = now_s
            _log.warning("limits.store_lost_its_data")
        self._birth = view.birth
        # The other routers are not gone because a store that lost its data has not heard of them yet.
        self._num_routers = max(view.num_routers, self._num_routers if self._is_settling else 1)

    async def _until_due(self) -> None:
        while (left_s := self._due_s - self._clock.monotonic_s()) > 0:
            self._wake.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _ask_within(self, share: TenantShare, seconds: float) -> None:
        due_s = self._clock.monotonic_s() + seconds
        share.due_s = min(share.due_s, due_s)
        if due_s < self._due_s:
            self._due_s = due_s
            self._wake.set()


def _waiter(cost: int, now_s: float) -> Waiter:
    return Waiter(asyncio.get_running_loop().create_future(), now_s, cost)


def _no_tokens(rate: int, retry_s: float) -> LimitExceededError:
    message = f"your tenant has used its {rate} tokens per second; retry when there are some again"
    return LimitExceededError(TOKENS, message, retry_s)


def _present(asks: Iterable[_Ask | None]) -> list[_Ask]:
    return [ask for ask in asks if ask is not None]


def _nothing(_: int) -> None:
    pass
