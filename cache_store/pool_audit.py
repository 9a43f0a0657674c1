"""What an audit needs of a block pool: room that costs nobody else anything, and blocks put out of use.

Owned by the pool, whose tree, accounts and unused blocks it works on.
"""

from __future__ import annotations

from cache_store.domain import Domain
from cache_store.event_log import EventLog
from cache_store.events import BlockChange
from cache_store.eviction import Evictions
from cache_store.ledger import Ledger
from cache_store.lower_tiers import LowerTiers
from cache_store.prefix_tree import Block, PrefixTree
from cache_store.scrubs import Scrubs
from cache_store.tokens import PackedTokens
from cache_store.windows import Windows


class PoolAudit:
    """Of one pool."""

    def __init__(
        self,
        tree: PrefixTree,
        ledger: Ledger,
        unused: list[Block],
        windows: Windows,
        scrubs: Scrubs,
        events: EventLog,
        evictions: Evictions,
        lower: LowerTiers | None,
    ) -> None:
        self._tree = tree
        self._ledger = ledger
        self._unused = unused
        self._windows = windows
        self._scrubs = scrubs
        self._events = events
        self._evictions = evictions
        self._lower = lower

    def standing(self, domain: Domain, tokens: PackedTokens, num_tokens: int) -> list[Block]:
        """The device's full blocks of a prompt, whether a request could reuse them or not. Changes nothing."""
        return self._tree.match(domain, tokens, num_tokens)

    def make_room(self, domain: Domain, num_blocks: int) -> bool:
        """Makes sure that its tenant can have so many blocks without any of another tenant's.

        Evicts cached blocks of its own where there are no unused ones. False, and nothing has changed, where those are
        too few.
        """
        account = self._ledger.of(domain.tenant)
        num_free = account.num_kept + self._ledger.num_free(len(self._unused))
        num_missing = max(0, num_blocks - num_free, account.num_used + num_blocks - account.maximum)
        if num_missing > account.num_cached:
            return False
        self._evictions.evict(account, num_missing)
        return True

    def subtree(self, block: Block) -> list[Block]:
        """A block of the tree and all below it on the device, parents first."""
        return self._tree.subtree(block)

    def quarantine(self, block: Block) -> None:
        """Takes a block of the tree and all below it out of all tiers: nothing finds them any more.

        Those that nobody holds are scrubbed; what others hold of them stays theirs until they let go of it.
        """
        tag, parent = self._tree.root_of(block).tag, block.parent
        removed = self._tree.remove_subtree(block)
        self._windows.forget(removed)
        if self._lower is None:
            self._events.add(tag, BlockChange.REMOVED, removed[::-1])
        else:
            for each in reversed(removed):
                self._lower.drop_block(each, tag)
        loose = [each for each in removed if not each.ref_count]
        self._unused += loose
        self._scrubs.add(loose)
        account = self._ledger.of(block.tenant)
        account.lose_cached(len(loose))
        if isinstance(parent, Block) and not (parent.ref_count or parent.children):
            self._evictions.offer(account, parent)
        if not account.num_used:
            self._ledger.leave(account)
        self._evictions.give_back()
