"""Loads that wait: tenants take turns, within a tenant its domains, and what is new is told once."""

from __future__ import annotations

from cache_store.domain import TenantId
from cache_store.transfers import Load, TransferId
from tests.support.transfer_plans import block_name
from worker.turns import LoadTurns


def load(number: int, domain: int, tenant: str = "acme") -> Load:
    return Load(TransferId(number), TenantId(tenant), block_name(number, domain), None, (0,))


def taken(turns: LoadTurns, num_turns: int) -> list[list[int]]:
    return [[each.id for each in turns.take()] for _ in range(num_turns)]


def test_tenants_take_turns() -> None:
    turns = LoadTurns(2)
    turns.put([load(number, 0) for number in range(5)])
    turns.put([load(number, 1, "globex") for number in (5, 6)])
    assert taken(turns, 4) == [[0, 1], [5, 6], [2, 3], [4]]


def test_a_tenant_with_many_domains_has_the_turns_of_one() -> None:
    turns = LoadTurns(1)
    turns.put([load(number, domain=number) for number in range(6)])
    turns.put([load(number, 9, "globex") for number in (6, 7)])
    assert taken(turns, 8) == [[0], [6], [1], [7], [2], [3], [4], [5]]


def test_domains_take_the_turns_of_their_tenant() -> None:
    turns = LoadTurns(2)
    turns.put([load(number, 0) for number in range(3)])
    turns.put([load(3, 1)])
    turns.put([load(number, 2, "globex") for number in (4, 5, 6)])
    assert taken(turns, 5) == [[0, 1], [4, 5], [3], [6], [2]]


def test_what_is_new_is_told_once() -> None:
    turns = LoadTurns(1)
    turns.put([load(0, 0), load(1, 0)])
    turns.take()
    assert [each.id for each in turns.fresh()] == [0, 1]
    turns.put([load(2, 0)])
    assert [each.id for each in turns.fresh()] == [2]
    assert turns.fresh() == []
    assert [each.id for each in turns.take()] == [1]
