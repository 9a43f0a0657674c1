"""Plans that only move blocks, and names for them."""

from __future__ import annotations

from cache_store.block_name import BlockName
from cache_store.domain import TenantId
from cache_store.tokens import pack
from cache_store.transfers import NO_MOVES, HostStore, Load, Moves, Spill, TransferId
from worker.step_plan import SlotRef, StepPlan


def block_name(number: int, domain: int = 0, block_size: int = 4) -> BlockName:
    """A name of its own for every number."""
    root = bytes([domain]) * 32
    tokens = pack(range(number * block_size, (number + 1) * block_size))
    return BlockName(root, root, number.to_bytes(16, "little"), tokens, number)


def store(host_slot: int, *slots: int) -> HostStore:
    return HostStore(slots, host_slot)


def spill(
    transfer: int, host_slot: int, name: BlockName | None = None, tenant: str = "acme", *, is_firm: bool = False
) -> Spill:
    return Spill(TransferId(transfer), host_slot, name or block_name(transfer), TenantId(tenant), is_firm)


def load(
    transfer: int, host_slot: int | None, *slots: int, name: BlockName | None = None, tenant: str = "acme"
) -> Load:
    return Load(TransferId(transfer), TenantId(tenant), name or block_name(transfer), host_slot, slots)


def moving(moves: Moves = NO_MOVES, *loads: Load, scrubs: tuple[SlotRef, ...] = ()) -> StepPlan:
    """A plan without rows."""
    return StepPlan((), scrubs, (), (), moves, loads)
