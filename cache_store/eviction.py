"""Takes cached blocks out of the device: to make room, at the end of their time, or to give tenants what is theirs.

Who pays is decided in `cache_store/lending.py`, what of a tenant goes by its account. What leaves goes to the lower
tiers where there are any. Owned by the pool, whose tree, accounts and unused blocks it works on.
"""

from __future__ import annotations

import math

from cache_store.account import Account
from cache_store.clock import Clock
from cache_store.event_log import EventLog
from cache_store.events import BlockChange
from cache_store.eviction_queue import may_go
from cache_store.expiry import Expiries
from cache_store.ledger import Ledger
from cache_store.lending import Charge, Need, charges
from cache_store.lower_tiers import LowerTiers
from cache_store.prefix_tree import Block, PrefixTree
from cache_store.usage import Pressure
from cache_store.windows import Windows


class Evictions:
    """Of one pool."""

    def __init__(
        self,
        clock: Clock,
        tree: PrefixTree,
        ledger: Ledger,
        unused: list[Block],
        events: EventLog,
        lower: LowerTiers | None,
        windows: Windows,
    ) -> None:
        self._clock = clock
        self._tree = tree
        self._ledger = ledger
        self._unused = unused
        self._events = events
        self._lower = lower
        self._windows = windows
        self._expiries: Expiries[Block] = Expiries()
        self._num_evicted = self._num_lent_back = self._num_expired = self._num_trimmed = 0

    @property
    def pressure(self) -> Pressure:
        """What was evicted, and why."""
        return Pressure(
            lent_back_blocks=self._num_lent_back,
            evicted_blocks=self._num_evicted,
            expired_blocks=self._num_expired,
            trimmed_blocks=self._num_trimmed,
        )

    def offer(self, account: Account, leaf: Block) -> None:
        """Takes a leaf that nobody holds into the order of eviction."""
        use = leaf.use
        assert use is not None
        account.queue.push(leaf)
        if use.expires_s != math.inf:
            self._expiries.push(leaf, use)

    def expire(self) -> None:
        """Evicts leaves whose time is over, unless something below them, in a lower tier, has still time.

        So nothing is moved when time passes, and it does not matter who notices.
        """
        now_s = self._clock.monotonic_s()
        leaf = self._expiries.pop(now_s)
        if leaf is None:
            return
        while leaf is not None:
            if not _has_below(leaf):
                account = self._ledger.of(leaf.tenant)
                num_most = account.num_cached if self._lower is None else 1
                self._num_expired += self._evict_tail(account, leaf, num_most)
                if not account.num_used:
                    self._ledger.leave(account)
            leaf = self._expiries.pop(now_s)
        self.give_back()

    def watch(self, block: Block) -> None:
        """A block that has nothing below it in lower tiers any more: it goes when its time is over."""
        use = block.use
        if use is not None and use.expires_s != math.inf and may_go(block, use):
            self._expiries.push(block, use)

    def make_room(self, account: Account, num_blocks: int) -> None:
        """Evicts until `num_blocks` unused slots may be given to the account."""
        over = account.num_used + num_blocks - account.maximum
        if over > 0:
            if account.maximum < self._ledger.num_blocks:  # else it is the pool that is full
                self._num_trimmed += over
            self.evict(account, over)
        num_missing = num_blocks - account.num_kept - self._ledger.num_free(len(self._unused))
        if num_missing <= 0:
            return
        if self._ledger.is_alone(account):
            self.evict(account, num_missing)
            return
        is_guaranteed = account.num_used + num_blocks <= account.minimum
        for due in charges(num_missing, self._ledger.present, Need(account, num_blocks)):
            if due.payer is not account:
                _note_cause(account, due.payer, due.num_blocks)
                if is_guaranteed:
                    self._num_lent_back += due.num_blocks
            self.evict(due.payer, due.num_blocks)

    def trim(self, account: Account) -> None:
        """Evicts what is cached beyond the account's maximum."""
        num_over = max(0, min(account.num_cached, account.num_used - account.maximum))
        self._num_trimmed += num_over
        self.evict(account, num_over)

    def give_back(self) -> None:
        """Gives strict tenants what others have of their guarantees, as soon as nobody holds it."""
        num_to_keep = self._ledger.num_to_keep()
        if num_to_keep == 0:
            return
        num_free = self._ledger.num_free(len(self._unused))
        if num_to_keep > num_free:
            deficits = self._ledger.deficits()
            for due in charges(num_to_keep - num_free, self._ledger.present, None):
                self._num_lent_back += due.num_blocks
                _note_causes(deficits, due)
                self.evict(due.payer, due.num_blocks)
        self._ledger.keep(self._ledger.num_free(len(self._unused)))

    def evict(self, account: Account, num_blocks: int) -> None:
        """Evicts cached blocks of the account, which has that many."""
        now_s = self._clock.monotonic_s()
        while num_blocks > 0:
            block = account.evict_least(now_s)
            assert block is not None, "cached blocks have leaves that nobody holds"
            num_blocks -= self._evict_tail(account, block, num_blocks)
        if not account.num_used:
            self._ledger.leave(account)

    def num_older(self, account: Account, num_most: int, before_s: float) -> int:
        """How many blocks, at most so many, `evict_older` would evict."""
        older: set[Block] = set()
        for leaf in account.queue.older_leaves(before_s):
            block: object = leaf
            while isinstance(block, Block) and block not in older and len(older) < num_most:
                if block.ref_count or block.use is None or block.use.time_s >= before_s:
                    break
                older.add(block)
                block = block.parent
            if len(older) == num_most:
                break
        return len(older)

    def evict_older(self, account: Account, num_most: int, before_s: float, asking: Account) -> int:
        """Evicts what the account used last before a time, at most so many blocks, the oldest first; how many."""
        num_gone = 0
        while num_gone < num_most and (leaf := account.queue.pop_oldest(before_s)) is not None:
            num_gone += self._evict_tail(account, leaf, num_most - num_gone)
        if account is not asking:
            _note_cause(asking, account, num_gone)
        if not account.num_used:
            self._ledger.leave(account)
        return num_gone

    def _evict_tail(self, account: Account, leaf: Block, num_most: int) -> int:
        """Evicts a leaf and, as long as they become leaves of the same use, its ancestors; how many."""
        use, root = leaf.use, self._tree.root_of(leaf)
        removed, above = self._tree.remove_tail(leaf, num_most)
        if self._lower is None:
            self._events.add(root.tag, BlockChange.REMOVED, removed)
        else:
            assert use is not None
            self._lower.demote(removed, above, use, root)
        if self._windows:
            self._windows.forget(removed)
        self._unused += removed
        if not (above.ref_count or above.children):
            assert isinstance(above, Block), "roots are always held"
            self.offer(account, above)
        if account.curve is not None and use is not None:
            account.curve.note_evicted(removed, use.place)
        count = len(removed)
        account.lose_cached(count)
        account.num_evicted += count
        self._num_evicted += count
        return count


def _has_below(block: Block) -> bool:
    return block.lower is not None and bool(block.lower.children)


def _note_cause(account: Account, payer: Account, num_blocks: int) -> None:
    """Blocks of `payer` make room for `account`."""
    account.num_caused += num_blocks
    payer.num_evicted_for_others += num_blocks


def _note_causes(deficits: list[tuple[Account, int]], due: Charge) -> None:
    """Blocks that go back to strict tenants go to those that lack some, one after the other."""
    num_blocks = due.num_blocks
    while num_blocks and deficits:
        account, number = deficits[0]
        taken = min(number, num_blocks)
        _note_cause(account, due.payer, taken)
        num_blocks -= taken
        if taken == number:
            del deficits[0]
        else:
            deficits[0] = (account, number - taken)
