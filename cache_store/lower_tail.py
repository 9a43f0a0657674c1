"""Blocks one above the other that leave a tier together, and which of them need a place in the one below. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cache_store.lower_block import LowerBlock
from cache_store.policy import Use
from cache_store.pool_sizes import ABSENT

_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Tail:
    """Leaf first, all of one use."""

    use: Use
    wants: list[bool]
    """Which need a place."""
    num_loose: int
    """So many next to the leaf have nothing below them that is lost with them."""

    def num_lost(self, room: int, least: int) -> int:
        """How many next to the leaf are left over, where `room` of those that need a place get one.

        The first `least` are left over anyhow. What is nearer to the root comes first: the others depend on it.
        """
        num_lost = len(self.wants)
        for at in range(len(self.wants) - 1, least - 1, -1):
            if self.wants[at]:
                if room == 0:
                    break
                room -= 1
            num_lost = at
        return num_lost


def absent_groups(slots: Sequence[int]) -> frozenset[int]:
    """Cache groups in which a block has no slot."""
    return frozenset(group for group, slot in enumerate(slots) if slot == ABSENT) if ABSENT in slots else _NONE


def num_loose(nodes: Sequence[LowerBlock | None]) -> int:
    """Blocks of a tail, from its leaf, up to the first that has something else below it."""
    return next((at for at, node in enumerate(nodes) if node is not None and node.children), len(nodes))


def wants_disk(nodes: Sequence[LowerBlock]) -> list[bool]:
    """Which of a tail in the host's memory are not on disk already."""
    return [node.disk is None for node in nodes]


def wants_host(nodes: Sequence[LowerBlock | None]) -> list[bool]:
    """Which of a tail on the device need a place in the host's memory.

    What is on disk already is so again, unless something below it lies in the host's memory.
    """
    wants: list[bool] = []
    is_above_host = False
    for node in nodes:
        if node is None:
            wants.append(True)
        else:
            is_above_host = is_above_host or any(child.host is not None for child in node.children.values())
            wants.append(node.host is None and (node.disk is None or is_above_host))
            is_above_host = is_above_host or node.host is not None
        is_above_host = is_above_host or wants[-1]
    return wants
