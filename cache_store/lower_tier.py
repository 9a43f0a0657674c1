"""One tier below the device: whose bytes are in which of its slots, under the same quotas as the device's.

Who pays for a slot and in which order a tenant's blocks leave is decided as on the device (`cache_store/lending.py`,
`cache_store/policy.py`); but where a tenant would pay for its own block, the block competes with what it would push
out. Nothing ever fails for want of room here. What becomes of blocks that leave is not its business. Owned by
`cache_store/lower_tiers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cache_store.account import Account
from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.ledger import Ledger
from cache_store.lending import Need, charges, num_available
from cache_store.lower_block import HOST, LowerBlock, Stay, StayState
from cache_store.lower_order import Order
from cache_store.policies.lru import Lru
from cache_store.policy import Use
from cache_store.quota import QuotaTable
from cache_store.shadow import DEFAULT_RULES
from cache_store.tier_kind import TierKind
from cache_store.usage import TierLoad

_SPEED_PART = 0.1
"""Weight of a new measurement of the time of a load."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Who is told what leaves a tier, and has to take it out."""

    tail: Callable[[list[Stay]], None]
    """Sole stays one above the other, leaf first, of the same use, that have to make room."""
    copy: Callable[[Stay], None]
    """A copy that has to make room."""
    slot: Callable[[Stay], None]
    """The slot of a stay has come free."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks of one use that ask to be taken in."""

    use: Use
    num_blocks: int
    num_firm: int
    """Of them, those that others below depend on: they do not compete."""


class LowerTier:
    """Slots, accounts and orders of one tier."""

    def __init__(self, level: int, num_blocks: int, clock: Clock, device: Ledger, leaving: Leaving) -> None:
        self.level = level
        self.kind = TierKind.HOST if level == HOST else TierKind.DISK
        self.num_blocks = num_blocks
        self.unused = list(range(num_blocks - 1, -1, -1))
        self.ledger = Ledger(self.kind, num_blocks, Lru, DEFAULT_RULES)
        self.num_stored = self.num_loaded = self.num_evicted = self.num_dropped = self.num_failed = 0
        self.load_block_s = 0.0
        self.orders: dict[TenantId, Order] = {}
        self._clock = clock
        self._device = device
        self._leaving = leaving

    def load(self) -> TierLoad:
        """What it has done."""
        return TierLoad(
            self.kind,
            self.num_blocks,
            self.num_blocks - len(self.unused),
            self.num_stored,
            self.num_loaded,
            self.num_evicted,
            self.num_dropped,
            self.num_failed,
            self.load_block_s,
        )

    def note_loaded(self, seconds: float) -> None:
        """A block was read back."""
        self.num_loaded += 1
        gain = _SPEED_PART if self.load_block_s else 1.0
        self.load_block_s += gain * (seconds - self.load_block_s)

    def order_of(self, tenant: TenantId) -> Order:
        """Its order of eviction."""
        order = self.orders.get(tenant)
        if order is None:
            order = self.orders[tenant] = Order(self.ledger.of(tenant), self._device.of(tenant))
        return order

    def used_by(self, tenant: TenantId) -> int:
        """Blocks of the tenant."""
        order = self.orders.get(tenant)
        return 0 if order is None else order.account.num_used

    def close(self, tenant: TenantId) -> None:
        """Forgets what is known of a deleted tenant, as soon as it has no blocks."""
        self.ledger.close(tenant)
        order = self.orders.get(tenant)
        if order is not None and not order.account.num_used:
            del self.orders[tenant]

    def set_quotas(self, quotas: QuotaTable) -> None:
        """Other quotas from now on; what exceeds them leaves."""
        self.ledger.set_quotas(quotas)
        for account in list(self.ledger.present):
            self._trim(account)
        self._give_back()

    def make_room(self, tenant: TenantId, offer: Offer) -> int:
        """Frees slots for the tenant's blocks: for so many of them as come in."""
        if self.ledger.has_strict:
            self._give_back()
        account = self.ledger.of(tenant)
        num = min(offer.num_blocks, num_available(account, self.ledger.present, len(self.unused)))
        if num == 0:
            return 0
        num_sure = offer.num_firm
        over = account.num_used + num - account.maximum
        if over > 0:
            freed = self._compete(account, over, Offer(offer.use, num, num_sure))
            num -= over - freed
        missing = num - account.num_kept - self.ledger.num_free(len(self.unused))
        if missing <= 0:
            return num
        for due in charges(missing, self.ledger.present, Need(account, num)):
            if due.payer is account:
                freed = self._compete(account, due.num_blocks, Offer(offer.use, num, num_sure))
            else:
                freed = self._evict(due.payer, due.num_blocks)
            num -= due.num_blocks - freed
        return max(0, num)

    def add(self, node: LowerBlock) -> Stay:
        """Takes a node in, for which there is room."""
        order = self.order_of(node.tenant)
        stay = Stay(node, order, self.level, self.unused.pop())
        if node.children:
            stay.children = sum(child.stays[self.level] is not None for child in node.children.values())
        node.stays[self.level] = stay
        self._count_child(node, 1)
        account = order.account
        self.ledger.enter(account)
        account.take_slots(1)
        account.num_held -= 1
        account.num_cached += 1
        return stay

    def remove(self, stay: Stay) -> None:
        """Takes a stay out; its slot comes free as soon as nothing refers to it."""
        node, order = stay.node, stay.order
        node.stays[self.level] = None
        if node.parent is not None:
            self._count_child(node, -1)
        if stay.parent is None:
            order.copies.pop(stay, None)
        stay.parent = None
        stay.is_gone = True
        if stay.ref_count == 0:
            order.account.num_cached -= 1
            self._free(order.account, stay)

    def hold(self, stay: Stay) -> None:
        """One more reason not to move it."""
        if stay.ref_count == 0:
            account = stay.order.account
            account.num_held += 1
            account.num_cached -= 1
            if stay.parent is None:
                stay.order.copies.pop(stay, None)
        stay.ref_count += 1

    def let_go(self, stay: Stay) -> None:
        """One reason less."""
        assert stay.ref_count > 0, "let go more often than held"
        stay.ref_count -= 1
        if stay.ref_count:
            return
        account = stay.order.account
        account.num_held -= 1
        if stay.is_gone:
            self._free(account, stay)
            return
        account.num_cached += 1
        if stay.parent is None:
            self.place_copy(stay)
        else:
            self.offer(stay)
        if account.num_used > account.maximum:
            self._trim(account)
        if self.ledger.has_strict:
            self._give_back()

    def place_sole(self, stay: Stay) -> None:
        """It is the only one of its block from now on."""
        stay.order.copies.pop(stay, None)
        stay.parent = stay.node
        self.offer(stay)

    def place_copy(self, stay: Stay) -> None:
        """A tier above has its block too."""
        stay.parent = None
        if stay.ref_count == 0:
            stay.order.copies[stay] = None

    def offer(self, stay: Stay) -> None:
        """Takes a stay into the order of eviction, where it may go."""
        if stay.parent is not None and stay.ref_count == 0 and stay.children == 0:
            stay.order.queue.push(stay)

    def hang(self, node: LowerBlock) -> None:
        """The node hangs below its parent from now on."""
        if node.stays[self.level] is not None:
            self._count_child(node, 1)

    def unhang(self, node: LowerBlock) -> None:
        """It no longer does; to be called while it still has its parent."""
        if node.stays[self.level] is not None:
            self._count_child(node, -1)

    def _count_child(self, node: LowerBlock, number: int) -> None:
        if isinstance(node.parent, LowerBlock):
            above = node.parent.stays[self.level]
            if above is not None:
                above.children += number
                if above.children == 0:
                    self.offer(above)

    def _free(self, account: Account, stay: Stay) -> None:
        self.unused.append(stay.slot)
        account.give_slots(1)
        if not account.num_used:
            self.ledger.leave(account)
            if account.is_closed:
                self.orders.pop(account.tenant, None)
        self._leaving.slot(stay)

    def _trim(self, account: Account) -> None:
        self._evict(account, max(0, min(account.num_cached, account.num_used - account.maximum)))

    def _give_back(self) -> None:
        """Gives strict tenants what others have of their guarantees; what cannot leave now, later."""
        num_to_keep = self.ledger.num_to_keep()
        if num_to_keep == 0:
            return
        num_missing = num_to_keep - self.ledger.num_free(len(self.unused))
        if num_missing > 0:
            for due in charges(num_missing, self.ledger.present, None):
                self._evict(due.payer, due.num_blocks)
        self.ledger.keep(max(0, self.ledger.num_free(len(self.unused))))

    def _evict(self, account: Account, num_blocks: int) -> int:
        """Evicts what the account can miss most easily; how many slots came free."""
        return self._push_out(account, num_blocks, None)

    def _compete(self, account: Account, num_blocks: int, offer: Offer) -> int:
        """Evicts what is worth less than the blocks that are offered; how many slots came free."""
        return self._push_out(account, num_blocks, offer)

    def _push_out(self, account: Account, num_blocks: int, offer: Offer | None) -> int:
        if num_blocks <= 0:
            return 0
        now_s = self._clock.monotonic_s()
        order = self.order_of(account.tenant)
        num_before = len(self.unused)
        wanted = num_before + num_blocks
        num_sure = num_blocks if offer is None else max(0, num_blocks - (offer.num_blocks - offer.num_firm))
        while len(self.unused) < wanted:
            if order.copies:
                stay, _ = order.copies.popitem()
                self._leaving.copy(stay)
                continue
            least = order.pop_least(now_s)
            if least is None:
                break
            is_rival = offer is not None and len(self.unused) - num_before >= num_sure
            if offer is not None and is_rival and not order.gives_way(least, offer.use, now_s):
                order.queue.push(least)
                break
            tail = self._tail(least, wanted - len(self.unused))
            self.num_evicted += len(tail)
            self._leaving.tail(tail)
        return min(num_blocks, len(self.unused) - num_before)

    def _tail(self, leaf: Stay, num_most: int) -> list[Stay]:
        """A leaf and those above it that become leaves of the same use with it."""
        tail, use, state = [leaf], leaf.use, leaf.state
        node = leaf.node.parent
        while isinstance(node, LowerBlock) and len(tail) < num_most:
            stay = node.stays[self.level]
            if stay is None or stay.parent is None or stay.ref_count or stay.children > 1:
                break
            if stay.use is not use or (stay.state is StayState.READY) is not (state is StayState.READY):
                break
            tail.append(stay)
            node = node.parent
        return tail
