"""Checks of a step plan that need no tensors: what a plan of any scheduler must hold for any runner."""

from __future__ import annotations

from cache_store.groups import CacheGeometry
from cache_store.transfers import NoTransfers, Transfers
from worker.move_check import check_loads, check_moves
from worker.step_plan import Row, StepPlan


def check_plan(plan: StepPlan, geometry: CacheGeometry, num_blocks: int, transfers: Transfers | None = None) -> None:
    """Raises AssertionError where rows, tables, copies, moves or loads contradict `worker/step_plan.py` or each other.

    `transfers`: what the runner has below its device; None: nothing.
    """
    decode_first = [row.is_decode for row in plan.rows]
    assert decode_first == sorted(decode_first, reverse=True), "a row that prefills stands before one that decodes"
    assert len({row.sequence for row in plan.rows}) == len(plan.rows), "a sequence has two rows"
    assert all(row.token_ids for row in plan.rows), "a row without tokens"
    for group in range(len(geometry.groups)):
        _check_tables(plan, group, geometry.block_size, num_blocks)
        _check_copies(plan, group)
    below = transfers or NoTransfers()
    check_moves(plan, geometry, num_blocks, below)
    check_loads(plan, geometry, num_blocks, below)


def _check_tables(plan: StepPlan, group: int, block_size: int, num_blocks: int) -> None:
    written: set[int] = set()
    for row in plan.rows:
        table = row.block_tables[group]
        assert len(table) == -(-row.kv_length // block_size), "a table does not cover exactly the tokens of its row"
        assert min(table) >= 0, "a negative slot"
        assert max(table) < num_blocks, "a slot outside the pool"
        targets = _written_slots(row, group, block_size)
        assert len(set(targets)) == len(targets), "a row writes to one slot twice"
        assert written.isdisjoint(targets), "two rows write to one slot"
        written.update(targets)
    for row in plan.rows:
        read_only = row.block_tables[group][: row.start // block_size]
        assert written.isdisjoint(read_only), "a row reads a block that is only being written"


def _written_slots(row: Row, group: int, block_size: int) -> tuple[int, ...]:
    return row.block_tables[group][row.start // block_size :]


def _check_copies(plan: StepPlan, group: int) -> None:
    targets = [copy.target for copy in plan.copies if copy.group == group]
    sources = {copy.source for copy in plan.copies if copy.group == group}
    assert len(set(targets)) == len(targets), "a slot is the target of two copies"
    assert sources.isdisjoint(targets), "a slot is source and target of one step"
    scrubs = {scrub.slot for scrub in plan.scrubs if scrub.group == group}
    assert sources.isdisjoint(scrubs), "a slot is scrubbed before it is copied"
