"""Checks of a step plan that need no tensors: what a plan of any scheduler must hold for any runner."""

from __future__ import annotations

from cache_store.groups import CacheGeometry, CacheGroup, GroupKind
from cache_store.pool_sizes import ABSENT
from cache_store.transfers import NoTransfers, Transfers
from worker.move_check import check_loads, check_moves
from worker.step_plan import Row, StepPlan


def check_plan(
    plan: StepPlan, geometry: CacheGeometry, num_slots: tuple[int, ...], transfers: Transfers | None = None
) -> None:
    """Raises AssertionError where rows, tables, copies, moves or loads contradict `worker/step_plan.py` or each other.

    `num_slots` per group; `transfers`: what the runner has below its device; None: nothing.
    """
    decode_first = [row.is_decode for row in plan.rows]
    assert decode_first == sorted(decode_first, reverse=True), "a row that prefills stands before one that decodes"
    assert len({row.sequence for row in plan.rows}) == len(plan.rows), "a sequence has two rows"
    assert all(row.token_ids for row in plan.rows), "a row without tokens"
    for group in range(len(geometry.groups)):
        _check_tables(plan, group, geometry, num_slots[group])
        _check_copies(plan, group, num_slots[group])
    for compare in plan.compares:
        slots = (compare.expected, compare.computed)
        assert all(0 <= slot < num_slots[compare.group] for slot in slots), "a compare outside the pool"
    below = transfers or NoTransfers()
    check_moves(plan, geometry, num_slots, below)
    check_loads(plan, geometry, num_slots, below)


def _check_tables(plan: StepPlan, group: int, geometry: CacheGeometry, num_slots: int) -> None:
    block_size = geometry.block_size
    written: set[int] = set()
    for row in plan.rows:
        table = row.block_tables[group]
        assert len(table) == -(-row.kv_length // block_size), "a table does not cover exactly the tokens of its row"
        first = _first_read(row, geometry.groups[group]) // block_size
        assert min(table[first:]) >= 0, "a negative slot"
        assert min(table) >= ABSENT, "a negative slot"
        assert max(table) < num_slots, "a slot outside the pool"
        targets = row.written_slots(group, block_size)
        assert len(set(targets)) == len(targets), "a row writes to one slot twice"
        assert written.isdisjoint(targets), "two rows write to one slot"
        written.update(targets)
    for row in plan.rows:
        read_only = row.block_tables[group][: row.start // block_size]
        assert written.isdisjoint(read_only), "a row reads a block that is only being written"


def _first_read(row: Row, group: CacheGroup) -> int:
    """First position that the row's first new token reads."""
    return max(0, row.start + 1 - group.window) if group.kind is GroupKind.SLIDING else 0


def _check_copies(plan: StepPlan, group: int, num_slots: int) -> None:
    targets = [copy.target for copy in plan.copies if copy.group == group]
    sources = {copy.source for copy in plan.copies if copy.group == group}
    assert all(0 <= slot < num_slots for slot in (*targets, *sources)), "a copy outside the pool"
    assert len(set(targets)) == len(targets), "a slot is the target of two copies"
    assert sources.isdisjoint(targets), "a slot is source and target of one step"
    scrubs = {scrub.slot for scrub in plan.scrubs if scrub.group == group}
    assert sources.isdisjoint(scrubs), "a slot is scrubbed before it is copied"
