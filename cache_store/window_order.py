"""In which order one tenant's cached window slots leave: a segmented list of the least recently used.

What a sequence has merely passed goes first, oldest first. What was used by a hit, and the windows at which sequences
ended, are protected: one long prompt does not push out the ends of all conversations. The protected part is bounded;
its oldest go back among the passed. State only; owned by `cache_store/window_slots.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from cache_store.account import Account

PROTECTED_PART = 0.8
"""Of what the tenant may have at most."""


class Worth(Enum):
    """What is known of a slot that a sequence lets go of."""

    PASSED = "passed"
    """It left the window of its sequence."""
    END = "end"
    """A hit read it, or its sequence ended there, or others are expected to go on from it."""


class WindowOrder:
    """Of one tenant in one group. Slots by number."""

    __slots__ = ("_passed", "_protected", "account")

    def __init__(self, account: Account) -> None:
        self.account = account
        """What the tenant has of the cache's slots: cached ones, and as held ones those that are locked."""
        self._passed: dict[int, None] = {}
        self._protected: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._passed) + len(self._protected)

    def __contains__(self, slot: int) -> bool:
        return slot in self._passed or slot in self._protected

    def __iter__(self) -> Iterator[int]:
        yield from self._passed
        yield from self._protected

    def add(self, slot: int, worth: Worth) -> None:
        """Takes in a slot as the latest."""
        if worth is Worth.PASSED:
            self._passed[slot] = None
            return
        self._protected[slot] = None
        num_over = len(self._protected) - max(1, int(PROTECTED_PART * self.account.maximum))
        while num_over > 0:
            oldest = next(iter(self._protected))
            del self._protected[oldest]
            self._passed[oldest] = None
            num_over -= 1

    def remove(self, slot: int) -> None:
        """Takes out a slot."""
        if slot in self._passed:
            del self._passed[slot]
        else:
            del self._protected[slot]

    def pop_least(self) -> int:
        """Takes out the slot that is missed least."""
        order = self._passed or self._protected
        slot = next(iter(order))
        del order[slot]
        return slot
