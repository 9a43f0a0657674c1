"""Limits in Redis: one script per operation, all of an exchange in one round trip, times by the server's clock.

Every key has an expiry, so that nothing is left of a tenant that asks no more and of routers that are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.limit_store import (
    PLACES_LEASE_S,
    Exchange,
    LimitStoreUnavailableError,
    PlaceAsk,
    PlaceGrant,
    RouterId,
    StoreView,
    TokenAsk,
    TokenGrant,
)
from cache_store.redis_keys import LIMITS_BIRTH_KEY, LIMITS_ROUTERS_KEY, places_key, tokens_key
from cache_store.redis_scripts import ScriptKind, load_script
from cache_store.redis_session import REDIS_ERRORS, Argument, RedisSession, Reply, ScriptCall
from cache_store.token_bucket import BURST_S

CALL_DEADLINE_S = 0.25


class RedisLimitStore:
    """LimitStore over a session."""

    def __init__(
        self, session: RedisSession, lease_s: float = PLACES_LEASE_S, deadline_s: float = CALL_DEADLINE_S
    ) -> None:
        self._session = session
        self._lease_ms = round(lease_s * 1000)
        self._deadline_s = deadline_s
        self._greet = load_script("greet_router", ScriptKind.WRITES)
        self._lease = load_script("lease_places", ScriptKind.WRITES)
        self._take = load_script("take_tokens", ScriptKind.WRITES)

    async def exchange(self, router: RouterId, places: Sequence[PlaceAsk], tokens: Sequence[TokenAsk]) -> Exchange:
        """See LimitStore."""
        greeting = ScriptCall(self._greet, (LIMITS_ROUTERS_KEY, LIMITS_BIRTH_KEY), (router, self._lease_ms))
        calls = [greeting, *(self._place_call(router, ask) for ask in places), *map(self._token_call, tokens)]
        try:
            view, *answers = await self._session.run_scripts(calls, self._deadline_s)
        except REDIS_ERRORS as error:
            raise LimitStoreUnavailableError(str(error)) from error
        return Exchange(
            _view(view),
            tuple(_place_grant(answer) for answer in answers[: len(places)]),
            tuple(_token_grant(answer) for answer in answers[len(places) :]),
        )

    def _place_call(self, router: RouterId, ask: PlaceAsk) -> ScriptCall:
        arguments = (router, ask.number, ask.limit, ask.held, ask.needed, ask.wanted, self._lease_ms)
        return ScriptCall(self._lease, (places_key(ask.tenant),), arguments)

    def _token_call(self, ask: TokenAsk) -> ScriptCall:
        burst = f"{ask.tokens_per_s * BURST_S:.3f}"
        arguments: list[Argument] = [ask.tokens_per_s, burst, ask.spent, ask.spare, *ask.costs]
        return ScriptCall(self._take, (tokens_key(ask.tenant),), arguments)


def _view(reply: Reply) -> StoreView:
    match reply:
        case [int(num_routers), bytes(birth)]:
            return StoreView(num_routers, birth.decode("utf-8", "replace"))
    raise _odd_answer()


def _place_grant(reply: Reply) -> PlaceGrant:
    match reply:
        case [int(granted), int(idle), int(others_want)]:
            return PlaceGrant(granted, max(0, idle), bool(others_want))
    raise _odd_answer()


def _token_grant(reply: Reply) -> TokenGrant:
    match reply:
        case [int(num_admitted), int(spare), bytes(level)]:
            return TokenGrant(num_admitted, spare, float(level))
    raise _odd_answer()


def _odd_answer() -> LimitStoreUnavailableError:
    return LimitStoreUnavailableError("a script of limits answers in another form than this build expects")
