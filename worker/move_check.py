"""Checks of a step plan's moves between tiers that need no bytes: what a plan must hold for any mover."""

from __future__ import annotations

from collections.abc import Iterable

from cache_store.groups import CacheGeometry, GroupKind
from cache_store.pool_sizes import ABSENT
from cache_store.tokens import count
from cache_store.transfers import Transfers
from worker.step_plan import StepPlan


def check_moves(plan: StepPlan, geometry: CacheGeometry, num_slots: tuple[int, ...], transfers: Transfers) -> None:
    """Raises AssertionError where spills, scrubs and stores contradict `cache_store/transfers.py` or each other."""
    moves = plan.moves
    stored = [store.host_slot for store in moves.stores]
    spilled = [spill.host_slot for spill in moves.spills]
    assert len(set(stored)) == len(stored), "a host slot gets two blocks"
    assert len(set(spilled)) == len(spilled), "a host slot is written to disk twice"
    _check_range((*stored, *spilled, *moves.host_scrubs), transfers.num_host_blocks, "a host slot outside the pool")
    assert transfers.num_disk_blocks or not spilled, "a block is written to a disk that is not there"
    for store in moves.stores:
        _check_slots(store.slots, geometry, num_slots)
    for spill in moves.spills:
        assert count(spill.name.tokens) == geometry.block_size, "a block on its way to disk is not named by its tokens"


def check_loads(plan: StepPlan, geometry: CacheGeometry, num_slots: tuple[int, ...], transfers: Transfers) -> None:
    """Raises AssertionError where a load's source or target is used for something else by the same plan."""
    ids = [*(spill.id for spill in plan.moves.spills), *(load.id for load in plan.loads)]
    assert len(set(ids)) == len(ids), "two transfers have one id"
    sources = {load.host_slot for load in plan.loads if load.host_slot is not None}
    _check_range(sources, transfers.num_host_blocks, "a host slot outside the pool")
    overwritten = {*plan.moves.host_scrubs, *(store.host_slot for store in plan.moves.stores)}
    assert sources.isdisjoint(overwritten), "a host slot is loaded in the step that overwrites it"
    for load in plan.loads:
        _check_slots(load.slots, geometry, num_slots)
        is_here = load.host_slot is not None or load.arrived is not None
        assert is_here or transfers.num_disk_blocks, "a block is read from a disk that is not there"
        assert count(load.name.tokens) == geometry.block_size, "a block to be loaded is not named by its tokens"
    for group in range(len(geometry.groups)):
        _check_targets(plan, group)


def _check_targets(plan: StepPlan, group: int) -> None:
    targets = [load.slots[group] for load in plan.loads if load.slots[group] != ABSENT]
    assert len(set(targets)) == len(targets), "a slot is the target of two loads"
    in_tables = {slot for row in plan.rows for slot in row.block_tables[group]}
    assert in_tables.isdisjoint(targets), "a row's table has a slot that is only being loaded"
    copied = {slot for copy in plan.copies if copy.group == group for slot in (copy.source, copy.target)}
    assert copied.isdisjoint(targets), "a slot is copied that is only being loaded"


def _check_slots(slots: tuple[int, ...], geometry: CacheGeometry, num_slots: tuple[int, ...]) -> None:
    assert len(slots) == len(geometry.groups), "a block has not one slot per group"
    for slot, group, num in zip(slots, geometry.groups, num_slots, strict=True):
        if slot != ABSENT or group.kind is not GroupKind.SLIDING:
            _check_range((slot,), num, "a slot outside the pool")


def _check_range(slots: Iterable[int], num_slots: int, what: str) -> None:
    assert all(0 <= slot < num_slots for slot in slots), what
