"""Leased places of one tenant at one router: what is at hand, asked for, kept and given up."""

from __future__ import annotations

import pytest

from cache_store.domain import TenantId
from cache_store.limit_store import PlaceAsk, PlaceGrant
from services.router.place_slice import IDLE_S, PlaceSlice, local_share

ACME = TenantId("acme")
LIMIT = 64
ROUTERS = 2
NOW_S = 100.0


def busy(in_use: int, granted: int) -> PlaceSlice:
    places = PlaceSlice()
    places.granted, places.used_s = granted, NOW_S
    for _ in range(in_use):
        assert places.take(LIMIT)
    return places


def asked(places: PlaceSlice, num_waiting: int = 0, now_s: float = NOW_S) -> PlaceAsk:
    return places.ask(ACME, LIMIT, num_waiting, ROUTERS, now_s)


def test_what_is_granted_is_at_hand_and_no_more() -> None:
    places = busy(in_use=2, granted=2)
    assert not places.take(LIMIT)
    places.give_back()
    assert places.take(LIMIT)


def test_a_bound_below_the_grant_holds() -> None:
    places = busy(in_use=2, granted=10)
    assert not places.take(2)
    assert places.take(3)


def test_it_asks_for_those_that_wait_and_some_to_spare() -> None:
    assert asked(busy(in_use=3, granted=3), num_waiting=2) == PlaceAsk(ACME, 1, LIMIT, held=3, needed=5, wanted=5 + 2)


def test_after_a_moment_without_requests_nothing_is_kept() -> None:
    places = busy(in_use=3, granted=8)
    assert asked(places, now_s=NOW_S + IDLE_S).wanted == 3
    assert not places.take(LIMIT), "what is given back cannot be taken meanwhile"


def test_nothing_is_kept_where_another_router_lacks_places() -> None:
    places = busy(in_use=3, granted=8)
    places.take_grant(asked(places), PlaceGrant(7, others_idle=0, others_want=True))
    assert places.has_excess(LIMIT, ROUTERS, NOW_S)
    assert not busy(in_use=3, granted=7).has_excess(LIMIT, ROUTERS, NOW_S)
    assert asked(places).wanted == 3


def test_of_a_small_limit_nothing_is_kept() -> None:
    places = busy(in_use=1, granted=2)
    assert places.ask(ACME, 4, 0, ROUTERS, NOW_S).wanted == 1


def test_it_tells_the_store_until_it_needs_nothing_any_more() -> None:
    places = busy(in_use=1, granted=1)
    places.take_grant(asked(places, num_waiting=1), PlaceGrant(1, 0, others_want=False))
    places.give_back()
    places.take_grant(asked(places, now_s=NOW_S + IDLE_S), PlaceGrant(0, 0, others_want=False))
    assert not places.is_due
    places.take_grant(asked(places, num_waiting=1, now_s=NOW_S + IDLE_S), PlaceGrant(0, 0, others_want=False))
    assert places.is_due, "others keep their places free for a need that is over"


@pytest.mark.parametrize(("limit", "routers", "share"), [(64, 3, 21), (1, 3, 1), (4, 1, 4), (2, 2, 1)])
def test_alone_a_router_takes_its_share(limit: int, routers: int, share: int) -> None:
    assert local_share(limit, routers) == share
    places = PlaceSlice()
    assert [places.take_unleased(share) for _ in range(share + 1)] == [True] * share + [False]
