"""Nodes and their bytes together: what becomes of both when a node moves, is held or is forgotten.

Decides nothing; owned by `cache_store/lower_tiers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cache_store.event_log import EventLog
from cache_store.events import BlockChange
from cache_store.expiry import Expiries
from cache_store.lower_block import LowerBlock, Stay, StayState
from cache_store.lower_moves import PendingMoves
from cache_store.lower_tier import LowerTier
from cache_store.lower_tree import LowerTree


class Stays:
    """Of all lower tiers of a worker."""

    def __init__(self, tree: LowerTree, tiers: tuple[LowerTier, ...], moves: PendingMoves, events: EventLog) -> None:
        self._tree = tree
        self._tiers = tiers
        self._moves = moves
        self._events = events
        self._expiries: Expiries[LowerBlock] = Expiries()

    def of(self, node: LowerBlock) -> list[tuple[LowerTier, Stay]]:
        """Where a node has bytes."""
        return [(self._tiers[stay.level], stay) for stay in node.stays if stay is not None]

    def rank(self, node: LowerBlock) -> None:
        """Its uppermost stay is sole, where the device has not the block; all others are copies."""
        is_above = node.device is not None
        for stay in node.stays:
            if stay is None:
                continue
            if is_above:
                self._tiers[stay.level].place_copy(stay)
            else:
                self._tiers[stay.level].place_sole(stay)
            is_above = True
        self.watch_expiry(node)

    def take_out(self, stay: Stay) -> None:
        """Bytes that are not wanted there any more."""
        if stay.state is StayState.WAITING:
            self._moves.cancel(stay)
        self._tiers[stay.level].remove(stay)

    def lose(self, stay: Stay) -> None:
        """Bytes of a node that are not there; it may be elsewhere."""
        node = stay.node
        if node.device is not None or any(other is not stay for _, other in self.of(node)):
            self.take_out(stay)
            self.rank(node)
            self._tree.tidy(node)
        else:
            self.forget(node)

    def forget(self, node: LowerBlock) -> None:
        """A node that the device has not leaves all tiers, and all below it."""
        place = node.parent
        assert place is not None
        for tier, _ in self.of(node):
            tier.unhang(node)
        nodes = self._tree.remove(node)
        for each in nodes:
            for stay in each.stays:
                if stay is not None:
                    self.take_out(stay)
        self._events.add(node.domain.tag, BlockChange.REMOVED, nodes)
        self._tree.tidy(place)
        if isinstance(place, LowerBlock):
            self.watch_expiry(place)

    def keep(self, nodes: Iterable[LowerBlock]) -> list[Stay]:
        """What must not make room for its own tail."""
        held = [stay for node in nodes for stay in node.stays if stay is not None]
        for stay in held:
            self._tiers[stay.level].hold(stay)
        return held

    def release(self, held: Iterable[Stay]) -> None:
        """One reason less for each of them to stay where it is."""
        for stay in held:
            self._tiers[stay.level].let_go(stay)

    def pin(self, stay: Stay) -> None:
        """A load may read it."""
        self._tiers[stay.level].hold(stay)
        stay.node.pinned.append(stay)

    def watch_expiry(self, node: LowerBlock) -> None:
        """Where nothing depends on a node, it goes when its time is over."""
        use = node.use
        if use is None or use.expires_s == math.inf:
            return
        if node.parent is not None and not node.children and node.ref_count == 0:
            self._expiries.push(node, use)

    def expire(self, now_s: float) -> None:
        """Drops what nobody used for its time to live."""
        while (leaf := self._expiries.pop(now_s)) is not None:
            self.forget(leaf)
