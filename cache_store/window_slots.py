"""The slots of one window group: a pool of its own, in which a block has a slot or none (`cache_store/pool_sizes.py`).

A slot is *held* by running sequences that read it, *locked* by pins and by what is on its way to it, *cached* for a
later hit, or free. Held ones are never short and never limited. Cached and locked ones together are at most C: who gets
those places is decided by the tenants' quotas, as on every tier (`cache_store/lending.py`). So what somebody runs
changes nothing of what another tenant has cached within its guarantee. A block that leaves the tree loses its slots.

Writes the group's entry of `Block.slots`, and nothing else of a block. Owned by the pool; no locks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from cache_store.account import Account
from cache_store.domain import TenantId
from cache_store.ledger import Ledger
from cache_store.lending import Need, charges, num_available
from cache_store.policies.lru import Lru
from cache_store.pool_sizes import ABSENT, WindowSize
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable
from cache_store.shadow import DEFAULT_RULES
from cache_store.tier_kind import TierKind
from cache_store.window_check import Slot, check_places, check_slots
from cache_store.window_order import WindowOrder, Worth

_NOBODY = b"dropped"
"""Root of a free slot with a dropped domain's bytes."""


class WindowSlots:
    """Of one group of one pool."""

    def __init__(self, size: WindowSize, dropped: Collection[bytes]) -> None:
        """`dropped`: roots of domains whose slots are to be scrubbed when they come free."""
        self.size = size
        self.group = size.group
        self.span = size.span
        self._dropped = dropped
        self._slots = tuple(Slot() for _ in range(size.num_slots))
        self._free = list(range(size.num_slots - 1, -1, -1))
        self._ledger = Ledger(TierKind.DEVICE, size.num_cached, Lru, DEFAULT_RULES)
        self._num_places = size.num_cached
        """Of the cache, that nobody has."""
        self._orders: dict[TenantId, WindowOrder] = {}
        self._scrubs: list[int] = []
        """To be overwritten before the next forward: given to another domain."""
        self._dropped_slots: list[int] = []
        """Free, to be overwritten some time. Those that were given away meanwhile count no more."""

    @property
    def num_used(self) -> int:
        """Slots that are not free."""
        return len(self._slots) - len(self._free)

    @property
    def num_cached(self) -> int:
        """Slots that are kept for later hits, locked ones included."""
        return self.size.num_cached - self._num_places

    # for sequences

    def take(self, block: Block) -> None:
        """A free slot for a block that has none, held once."""
        self._slots[self._give(block)].ref_count = 1

    def hold(self, blocks: Iterable[Block]) -> None:
        """One more sequence reads the slots of the blocks, which have one."""
        for block in blocks:
            slot = self._slots[block.slots[self.group]]
            slot.ref_count += 1
            if slot.ref_count == 1 and not slot.num_locks:
                self._leave_cache(block.slots[self.group])
        self._settle()

    def note_hit(self, blocks: Iterable[Block]) -> None:
        """A request goes on from the slots of the blocks, which it holds."""
        for block in blocks:
            self._slots[block.slots[self.group]].is_hit = True

    def let_go(self, blocks: Sequence[Block], worth: Worth) -> None:
        """A sequence reads the slots of the blocks no more. They are of one domain, in position order."""
        cached: list[int] = []
        for block in blocks:
            number = block.slots[self.group]
            slot = self._slots[number]
            assert slot.ref_count > 0, f"{block}: its slot is let go of more often than it is held"
            slot.ref_count -= 1
            if slot.ref_count or slot.num_locks:
                continue
            if block.parent is None:
                self._release(number)
            else:
                cached.append(number)
        if cached:
            self._keep(cached, worth)
            self._settle()

    def move(self, block: Block, there: Block) -> None:
        """The block `there` has equal contents and is kept in place of `block`, with whatever holds on its slot."""
        number, other = block.slots[self.group], there.slots[self.group]
        if number == ABSENT:
            return
        slot = self._slots[number]
        if other == ABSENT:
            slot.block = there
            self._write(there, number)
            self._write(block, ABSENT)
            return
        target = self._slots[other]
        if not target.ref_count and not target.num_locks:
            self._leave_cache(other)
        if slot.num_locks and target.num_locks:  # else its place goes along
            self._exit(slot.tenant, locked=1, cached=0)
        target.ref_count += slot.ref_count
        target.num_locks += slot.num_locks
        slot.ref_count = slot.num_locks = 0
        self._release(number)
        self._settle()

    # for pins and loads

    def num_locked(self, tenant: TenantId) -> int:
        """Slots of the tenant that are locked."""
        return self._ledger.of(tenant).num_held

    def num_unlocked(self, blocks: Iterable[Block]) -> int:
        """How many of the blocks' slots nobody has locked."""
        return sum(not self._slots[block.slots[self.group]].num_locks for block in blocks)

    def lock(self, blocks: Sequence[Block]) -> bool:
        """Keeps the slots of a domain's blocks, which have one. False, and nothing has changed, where C has no room.

        What is cached of them has its places; only what sequences hold needs some.
        """
        numbers = [block.slots[self.group] for block in blocks]
        fresh = [number for number in numbers if not self._slots[number].num_locks]
        if fresh:
            tenant = blocks[0].tenant
            if not self.can_reserve(tenant, len(fresh)):
                return False
            for number in fresh:
                if not self._slots[number].ref_count:
                    self._leave_cache(number)
            self._lock_places(tenant, len(fresh))
        for number in numbers:
            self._slots[number].num_locks += 1
        return True

    def can_reserve(self, tenant: TenantId, num_slots: int) -> bool:
        """Whether `reserve` has room: within the tenant's guarantee, or in what nobody is guaranteed.

        What is locked cannot be taken back for whom it is guaranteed.
        """
        if not num_slots:
            return True
        account = self._ledger.of(tenant)
        beyond = sum(max(0, each.num_held - each.minimum) for each in self._ledger.present)
        free = self.size.num_cached - sum(self._ledger.guarantees().values()) - beyond
        room = max(0, account.minimum - account.num_held) + max(0, free)
        return num_slots <= min(room, num_available(account, self._ledger.present, self._num_places))

    def reserve(self, blocks: Sequence[Block]) -> None:
        """Locked slots for blocks that have none: something is on its way to them. There is room."""
        if not blocks:
            return
        self._lock_places(blocks[0].tenant, len(blocks))
        for block in blocks:
            self._slots[self._give(block)].num_locks = 1

    def unlock(self, blocks: Iterable[Block]) -> None:
        """Ends one lock of each block's slot. What can be matched stays cached, as what ends there."""
        for block in blocks:
            number = block.slots[self.group]
            slot = self._slots[number]
            assert slot.num_locks > 0, f"{block}: its slot is unlocked more often than it is locked"
            if slot.num_locks > 1:
                slot.num_locks -= 1
            else:
                self._unlock(number, slot.tenant)
        self._settle()

    # for the pool

    def forget(self, blocks: Iterable[Block]) -> None:
        """The blocks have left the tree: what of their slots nobody holds is free."""
        for block in blocks:
            number = block.slots[self.group]
            if number == ABSENT:
                continue
            slot = self._slots[number]
            if not slot.ref_count and not slot.num_locks:
                self._leave_cache(number)
                self._release(number)
        self._settle()

    def set_quotas(self, quotas: QuotaTable) -> None:
        """Other quotas from now on; what is cached beyond them goes."""
        self._ledger.set_quotas(quotas)
        for account in list(self._ledger.present):
            self._evict(account, max(0, account.num_used - account.maximum))
        self._give_back()

    def close(self, tenant: TenantId) -> None:
        """Forgets what is known of a deleted tenant, as soon as it has no slots."""
        self._ledger.close(tenant)
        order = self._orders.get(tenant)
        if order is not None and not order.account.num_used:
            del self._orders[tenant]

    def drop(self, tenants: Collection[TenantId]) -> None:
        """Domains of `tenants` were dropped, and their blocks forgotten: their free slots are to be scrubbed."""
        for number in self._free:
            if self._slots[number].tenant in tenants:
                self._note_dropped(number)

    def expect_scrubs(self, root: bytes) -> None:
        """A domain was dropped, or may have been: its free slots are to be scrubbed, the others when they come free."""
        for number in self._free:
            if self._slots[number].root == root:
                self._note_dropped(number)

    def take_scrubs(self) -> list[int]:
        """Slots to be overwritten before the next forward."""
        scrubs, self._scrubs = self._scrubs, []
        return scrubs

    @property
    def num_dropped(self) -> int:
        """Slots to look at that are to be overwritten some time; 0 once all are."""
        return len(self._dropped_slots)

    def take_dropped(self, num_most: int) -> list[int]:
        """At most so many of them."""
        taken: list[int] = []
        while self._dropped_slots and len(taken) < num_most:
            number = self._dropped_slots.pop()
            if self._slots[number].root == _NOBODY:
                self._slots[number].root = b""
                taken.append(number)
        return taken

    def check_invariants(self, in_tree: Collection[Block]) -> None:
        """Raises AssertionError where the books do not agree; `in_tree` are all blocks that can be matched."""
        check_slots(self.size, self._slots, self._free, in_tree)
        for number in self._free:
            slot = self._slots[number]
            assert slot.root not in self._dropped, "a dropped domain's slot is not going to be scrubbed"
            assert slot.root != _NOBODY or number in self._dropped_slots, "it is never going to be"
        check_places(self.size, self._slots, self._ledger, self._orders, self._num_places)

    def check_holds(self, held: Mapping[Block, int]) -> None:
        """Raises AssertionError unless each block's slot is held so often."""
        for slot in self._slots:
            if slot.block is not None:
                assert slot.ref_count == held.get(slot.block, 0), f"{slot.block}: its slot is held by nobody known"
                assert slot.block.ref_count or not slot.ref_count, f"{slot.block}: its slot is held, it is not"
        assert all(block.slots[self.group] != ABSENT for block in held), "a slot that is held is gone"

    # slots

    def _give(self, block: Block) -> int:
        assert block.slots[self.group] == ABSENT, f"{block} has a slot"
        number = self._free.pop()
        slot = self._slots[number]
        slot.block = block
        if slot.root != block.root:
            if slot.root:
                self._scrubs.append(number)
            slot.root = block.root
            slot.tenant = block.tenant
        self._write(block, number)
        return number

    def _release(self, number: int) -> None:
        """A slot that nobody has any more."""
        slot = self._slots[number]
        assert slot.block is not None
        self._write(slot.block, ABSENT)
        slot.block = None
        slot.is_hit = False
        self._free.append(number)
        if slot.root in self._dropped:
            self._note_dropped(number)

    def _note_dropped(self, number: int) -> None:
        slot = self._slots[number]
        if slot.root and slot.root != _NOBODY:
            slot.root = _NOBODY
            self._dropped_slots.append(number)

    def _write(self, block: Block, number: int) -> None:
        slots = block.slots
        block.slots = (*slots[: self.group], number, *slots[self.group + 1 :])

    # places of the cache

    def _keep(self, numbers: list[int], worth: Worth) -> None:
        """Slots that nobody holds any more, of one tenant: as many as it has room for stay, the last ones."""
        tenant = self._slots[numbers[0]].tenant
        account = self._ledger.of(tenant)
        num = self._make_room(account, len(numbers))
        for number in numbers[: len(numbers) - num]:
            self._release(number)
        if not num:
            return
        order = self._orders.get(tenant)
        if order is None:
            order = self._orders[tenant] = WindowOrder(account)
        self._enter(tenant, locked=0, cached=num)
        for number in numbers[len(numbers) - num :]:
            slot = self._slots[number]
            order.add(number, Worth.END if slot.is_hit else worth)
            slot.is_hit = False

    def _unlock(self, number: int, tenant: TenantId) -> None:
        slot = self._slots[number]
        slot.num_locks = 0
        self._exit(tenant, locked=1, cached=0)
        if slot.ref_count:
            return
        assert slot.block is not None
        if slot.block.parent is None:
            self._release(number)
        else:
            self._keep([number], Worth.END)

    def _lock_places(self, tenant: TenantId, num_slots: int) -> None:
        num = self._make_room(self._ledger.of(tenant), num_slots)
        assert num == num_slots, "room was checked"
        self._enter(tenant, locked=num, cached=0)

    def _leave_cache(self, number: int) -> None:
        """A cached slot is cached no more."""
        tenant = self._slots[number].tenant
        self._orders[tenant].remove(number)
        self._exit(tenant, locked=0, cached=1)

    def _enter(self, tenant: TenantId, locked: int, cached: int) -> None:
        account = self._ledger.of(tenant)
        self._ledger.enter(account)
        account.take_slots(locked + cached)
        account.num_held -= cached
        account.num_cached += cached
        self._num_places -= locked + cached

    def _exit(self, tenant: TenantId, locked: int, cached: int) -> None:
        account = self._ledger.of(tenant)
        account.num_held -= locked
        account.num_cached -= cached
        account.give_slots(locked + cached)
        self._num_places += locked + cached
        if not account.num_used:
            self._ledger.leave(account)
            if account.is_closed:
                self._orders.pop(tenant, None)

    def _make_room(self, account: Account, num_slots: int) -> int:
        """Frees places of the cache for a tenant; for how many of the slots there is one."""
        if self._ledger.has_strict:
            self._give_back()
        num = min(num_slots, num_available(account, self._ledger.present, self._num_places))
        if num <= 0:
            return 0
        self._evict(account, max(0, account.num_used + num - account.maximum))
        missing = num - account.num_kept - self._ledger.num_free(self._num_places)
        if missing > 0:
            for due in charges(missing, self._ledger.present, Need(account, num)):
                self._evict(due.payer, due.num_blocks)
        return num

    def _settle(self) -> None:
        """Places may have come free."""
        if self._ledger.has_strict:
            self._give_back()

    def _give_back(self) -> None:
        """Gives strict tenants what others have of their guarantees."""
        num_to_keep = self._ledger.num_to_keep()
        if num_to_keep == 0:
            return
        num_missing = num_to_keep - self._ledger.num_free(self._num_places)
        if num_missing > 0:
            for due in charges(num_missing, self._ledger.present, None):
                self._evict(due.payer, due.num_blocks)
        self._ledger.keep(max(0, self._ledger.num_free(self._num_places)))

    def _evict(self, account: Account, num_slots: int) -> None:
        """Takes the account's cached slots that are missed least."""
        order = self._orders.get(account.tenant)
        num = min(num_slots, 0 if order is None else len(order))
        if order is None or not num:
            return
        for _ in range(num):
            self._release(order.pop_least())
        self._exit(account.tenant, locked=0, cached=num)
