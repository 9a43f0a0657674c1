"""A window group's slot, and what always holds of all of them (`cache_store/window_slots.py`, whose state they are)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from cache_store.domain import TenantId
from cache_store.ledger import Ledger
from cache_store.pool_sizes import WindowSize
from cache_store.prefix_tree import Block
from cache_store.window_order import WindowOrder


class Slot:
    """Who has a slot."""

    __slots__ = ("block", "is_hit", "num_locks", "ref_count", "root", "tenant")

    def __init__(self) -> None:
        self.block: Block | None = None
        """None: it is free."""
        self.root = b""
        """Domain root whose bytes it holds, or held last; empty: nobody's yet."""
        self.tenant = TenantId("")
        self.ref_count = 0
        """Sequences that read it."""
        self.num_locks = 0
        """Pins and loads."""
        self.is_hit = False
        """A request went on from it."""


def check_slots(size: WindowSize, slots: Sequence[Slot], free: Sequence[int], in_tree: Collection[Block]) -> None:
    """Slots and blocks agree, and no more are held than can be."""
    assert len(set(free)) == len(free), "a free slot is listed twice"
    assert {number for number, slot in enumerate(slots) if slot.block is None} == set(free)
    num_held = 0
    for number, slot in enumerate(slots):
        if slot.block is None:
            assert not slot.ref_count, "a free slot is held"
            assert not slot.num_locks, "a free slot is locked"
            continue
        assert slot.block.slots[size.group] == number, "a block does not know its slot"
        assert slot.root == slot.block.root, "a slot has another domain's block"
        assert slot.tenant == slot.block.tenant
        num_held += slot.ref_count > 0
        assert slot.ref_count or slot.num_locks or slot.block in in_tree, "a slot is cached that nothing can find"
    assert num_held <= size.num_held, "sequences hold more slots than they can"


def check_places(
    size: WindowSize, slots: Sequence[Slot], ledger: Ledger, orders: Mapping[TenantId, WindowOrder], num_places: int
) -> None:
    """Accounts and orders agree with the slots."""
    locked: Counter[TenantId] = Counter()
    cached: dict[TenantId, set[int]] = defaultdict(set)
    for number, slot in enumerate(slots):
        if slot.num_locks:
            locked[slot.tenant] += 1
        elif slot.block is not None and not slot.ref_count:
            cached[slot.tenant].add(number)
    present = set(ledger.present)
    for account in ledger.everybody:
        tenant = account.tenant
        assert set(orders.get(tenant, ())) == cached[tenant], "a cached slot is in no order, or another one is"
        assert account.num_cached == len(cached[tenant]), f"{tenant}: slots are miscounted"
        assert account.num_held == locked[tenant], f"{tenant}: locked slots are miscounted"
        assert account.num_cached == 0 or account.num_used <= account.maximum, f"{tenant} keeps too much"
        assert account.num_kept <= account.num_to_keep
        assert (account in present) == (account.num_used > 0 or account.strict)
    num_used = sum(account.num_used for account in ledger.everybody)
    assert num_used == locked.total() + sum(map(len, cached.values())), "slots are kept for nobody"
    assert num_used + num_places == size.num_cached, "places were lost or made up"
    assert ledger.num_free(num_places) >= 0, "places are kept that are used"
    if ledger.num_to_keep():
        assert ledger.num_free(num_places) == 0, "free places are kept from a strict tenant"
