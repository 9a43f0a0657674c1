"""Who gives way for whom: the choice alone."""

from __future__ import annotations

from itertools import count

import pytest

from cache_store.domain import TenantId
from cache_store.tokens import pack
from tests.support.engines import ACME, sampling
from worker.preemption import Candidate, Demand, Party, makes_way, yields_to_growth
from worker.requests import CacheMode, EngineRequest, RequestKey
from worker.sequence import ActiveRequest

_keys = count()


def candidate(num_blocks: int, num_places: int = 1) -> Candidate:
    key = next(_keys)
    request = EngineRequest(RequestKey(key), ACME, pack([1]), sampling(), 1, CacheMode.READ_WRITE)
    return Candidate(ActiveRequest(request, key, 0.0), num_blocks, num_places)


def party(
    name: str,
    blocks: tuple[int, ...],
    service_s: float = 0.0,
    guaranteed: int = 0,
    fair_blocks: float = 10.0,
    fair_places: float = 2.0,
    num_guarded: int = 0,
) -> Party:
    """A tenant with a request per number of blocks, youngest first; the last ones cannot be preempted."""
    candidates = tuple(candidate(each) for each in blocks)
    return Party(
        tenant=TenantId(name),
        service_s=service_s,
        num_blocks=sum(blocks),
        num_places=len(blocks),
        guaranteed=guaranteed,
        fair_blocks=fair_blocks,
        fair_places=fair_places,
        candidates=candidates[: len(candidates) - num_guarded],
    )


def test_the_tenant_with_most_service_gives_way_first_and_its_youngest() -> None:
    asking = party("a", (12,), service_s=1.0)
    little, much = party("b", (6, 6), service_s=2.0), party("c", (6, 6), service_s=3.0)
    assert yields_to_growth(asking, [little, much], room=5) is much.candidates[0].request


def test_among_those_above_their_part_the_asking_tenant_is_one() -> None:
    asking = party("a", (6, 6), service_s=9.0)
    assert yields_to_growth(asking, [party("b", (6, 6))], room=5) is asking.candidates[0].request


@pytest.mark.parametrize("other", [party("b", (5, 5), 9.0), party("b", (6, 6), 9.0, guaranteed=12)])
def test_nobody_at_its_guarantee_or_within_its_part_gives_way(other: Party) -> None:
    asking = party("a", (4,))
    assert yields_to_growth(asking, [other], room=5) is asking.candidates[0].request


def test_below_its_guarantee_it_takes_from_those_above_theirs_even_within_their_part() -> None:
    asking = party("a", (4,), service_s=9.0, guaranteed=8)
    other = party("b", (4, 4), guaranteed=6)
    assert yields_to_growth(asking, [other], room=5) is other.candidates[0].request


def test_at_its_own_maximum_it_takes_from_itself_only() -> None:
    asking = party("a", (4, 4), guaranteed=20)
    assert yields_to_growth(asking, [party("b", (30,), 9.0)], room=0) is asking.candidates[0].request


def test_who_was_preempted_often_enough_is_passed_over() -> None:
    asking = party("a", (12,))
    other = party("b", (6, 6), service_s=9.0, num_guarded=2)
    assert yields_to_growth(asking, [other], room=5) is asking.candidates[0].request


def demand(num_blocks: int = 4, missing_blocks: int = 0, missing_places: int = 0, is_own_limit: bool = False) -> Demand:
    return Demand(num_blocks, 1, missing_blocks, missing_places, is_own_limit)


def test_a_newcomer_gets_its_part_of_the_blocks() -> None:
    asking, other = party("a", ()), party("b", (8, 8), service_s=1.0)
    assert makes_way(asking, [other], demand(missing_blocks=4)) == (other.candidates[0].request,)
    assert makes_way(asking, [other], demand(num_blocks=11, missing_blocks=4)) == ()


def test_a_newcomer_gets_its_part_of_the_places() -> None:
    asking, other = party("a", ()), party("b", (1, 1, 1, 1))
    assert makes_way(asking, [other], demand(missing_places=1)) == (other.candidates[0].request,)
    assert makes_way(party("a", (1, 1)), [other], demand(missing_places=1)) == ()


def test_the_others_keep_their_part() -> None:
    assert makes_way(party("a", ()), [party("b", (5, 5))], demand(missing_blocks=4)) == ()
    assert makes_way(party("a", ()), [party("b", (1, 1))], demand(missing_places=1)) == ()


def test_within_its_guarantee_it_takes_what_others_have_beyond_theirs() -> None:
    asking, other = party("a", (), guaranteed=10), party("b", (5, 5), guaranteed=6)
    assert makes_way(asking, [other], demand(missing_blocks=4)) == (other.candidates[0].request,)
    assert makes_way(asking, [party("b", (5, 5), guaranteed=10)], demand(missing_blocks=4)) == ()


def test_nobody_is_preempted_where_it_would_not_be_enough() -> None:
    other = party("b", (2, 20), num_guarded=1)
    assert makes_way(party("a", ()), [other], demand(missing_blocks=4)) == ()


def test_nobody_else_is_preempted_for_a_tenants_own_limit() -> None:
    assert makes_way(party("a", ()), [party("b", (30,))], demand(missing_blocks=4, is_own_limit=True)) == ()


def test_blocks_and_places_may_come_from_different_tenants() -> None:
    wide, tall = party("b", (1, 1, 1)), party("c", (15,), fair_places=2.0)
    victims = makes_way(party("a", ()), [wide, tall], demand(missing_blocks=4, missing_places=1))
    assert set(victims) >= {tall.candidates[0].request}
