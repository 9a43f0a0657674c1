"""Loads that wait: domains take turns, and what is new is told once."""

from __future__ import annotations

from cache_store.transfers import Load, TransferId
from tests.support.transfer_plans import block_name
from worker.turns import LoadTurns


def load(number: int, domain: int) -> Load:
    return Load(TransferId(number), block_name(number, domain), None, (0,))


def test_domains_take_turns() -> None:
    turns = LoadTurns(2)
    turns.put([load(number, 0) for number in range(5)])
    turns.put([load(number, 1) for number in (5, 6)])
    assert [[each.id for each in turns.take()] for _ in range(4)] == [[0, 1], [5, 6], [2, 3], [4]]


def test_what_is_new_is_told_once() -> None:
    turns = LoadTurns(1)
    turns.put([load(0, 0), load(1, 0)])
    turns.take()
    assert [each.id for each in turns.fresh()] == [0, 1]
    turns.put([load(2, 0)])
    assert [each.id for each in turns.fresh()] == [2]
    assert turns.fresh() == []
    assert [each.id for each in turns.take()] == [1]
