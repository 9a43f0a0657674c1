"""What the next plan moves between tiers, and what is on its way. Owned by `cache_store/lower_tiers.py`.

A store must be done before its slot of the device is written, a spill before its host slot is: a plan takes those, and
some more ahead, so that one prompt that takes many blocks at once fills neither a step nor the way to the disk. One
that has not been taken yet is simply forgotten when its block goes; one that has been refers to its stays until it is
reported.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from cache_store.block_name import BlockName
from cache_store.lower_block import Stay
from cache_store.pool_sizes import ABSENT
from cache_store.transfers import HostStore, Moves, Spill, TransferId

MAX_AHEAD = 32
"""Stores that a plan takes beside those that cannot wait."""

MAX_SPILLING = 32
"""Spills on their way to disk beside those that cannot wait."""

ALL_SLOTS = range(sys.maxsize)
"""Keys of all slots of a device: nothing can wait."""

_GROUP_BITS = 40


def slot_key(group: int, slot: int) -> int:
    """Names a slot of a device's cache group; in the first group it is the slot."""
    return group << _GROUP_BITS | slot


def slot_keys(slots: Sequence[int]) -> list[int]:
    """Of the slots that a block has."""
    return [group << _GROUP_BITS | slot for group, slot in enumerate(slots) if slot != ABSENT]


@dataclass(frozen=True, slots=True)
class Taken:
    """Moves that are in a plan, and the stays that its stores write."""

    moves: Moves
    stored: tuple[Stay, ...]


class PendingMoves:
    """Queues of one engine."""

    def __init__(self, num_per_plan: int) -> None:
        """`num_per_plan` blocks are overwritten in one plan at most, and moved ahead."""
        self._num_per_plan = num_per_plan
        self.stores: dict[Stay, tuple[int, ...]] = {}
        """Slots of the device by what they are stored to."""
        self.spills: dict[Stay, Spill] = {}
        self.scrubs: dict[int, None] = {}
        self.forgotten: dict[BlockName, None] = {}
        self.forgotten_domains: dict[bytes, None] = {}
        self.urgent: set[Stay] = set()
        """Stores that do not wait: of strict tenants, whose blocks must not be caught in it, whatever others do."""
        self.spilling: dict[TransferId, Stay] = {}
        """Not reported yet."""
        self.taken: Taken | None = None
        """By a plan that has not ended."""
        self._last = 0

    def new_transfer(self) -> TransferId:
        """Names a spill or load."""
        self._last += 1
        return TransferId(self._last)

    def cancel(self, stay: Stay) -> None:
        """Nothing is written to it any more."""
        self.stores.pop(stay, None)
        self.urgent.discard(stay)
        self.spills.pop(stay, None)

    def forget_domains(self, roots: Iterable[bytes]) -> None:
        """Everything of these domains goes from disk."""
        self.forgotten_domains.update(dict.fromkeys(roots))
        for name in [each for each in self.forgotten if each.root in self.forgotten_domains]:
            del self.forgotten[name]

    def take(self, written: Container[int]) -> Taken:
        """For a plan that writes to slots of the device; `written` has their keys.

        One plan at a time: the one before has ended.
        """
        assert self.taken is None, "the plan that took the moves before has not ended"
        scrubs = tuple(islice(self.scrubs, self._num_per_plan))
        stores = self._stores_now(written, scrubs)
        due = ALL_SLOTS if written is ALL_SLOTS else {*(stay.slot for stay in stores), *scrubs}
        spills = self._spills_now(due)
        stored = {stay.slot for stay in stores}
        moves = Moves(
            spills=tuple(spills.values()),
            host_scrubs=tuple(slot for slot in scrubs if slot not in stored),
            stores=tuple(HostStore(slots, stay.slot) for stay, slots in stores.items()),
            forgotten=tuple(self.forgotten),
            forgotten_domains=tuple(self.forgotten_domains),
        )
        self.taken = Taken(moves, tuple(stores))
        self.spilling.update((spill.id, stay) for stay, spill in spills.items())
        for stay in stores:
            del self.stores[stay]
        self.urgent.clear()
        for stay in spills:
            del self.spills[stay]
        for slot in scrubs:
            del self.scrubs[slot]
        self.forgotten.clear()
        self.forgotten_domains.clear()
        return self.taken

    def end(self, moves: Moves) -> Taken:
        """The plan that took them has ended."""
        taken, self.taken = self.taken, None
        assert taken is not None, "no plan took any moves"
        assert taken.moves is moves, "another plan took the moves"
        return taken

    def ask_again(self, taken: Taken) -> None:
        """The plan failed: nobody knows how much of it was done."""
        slots = (*taken.moves.host_scrubs, *(store.host_slot for store in taken.moves.stores))
        self.scrubs.update(dict.fromkeys(slots))
        spilled = {spill.name for spill in taken.moves.spills}  # written after what was there before was forgotten
        self.forgotten.update(dict.fromkeys(name for name in taken.moves.forgotten if name not in spilled))
        self.forgotten_domains.update(dict.fromkeys(taken.moves.forgotten_domains))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to move."""
        return not (self.stores or self.spills or self.scrubs or self.forgotten or self.forgotten_domains)

    @property
    def has_some(self) -> bool:
        """Whether a plan that writes nothing has something to move. What waits for the disk gives it no work."""
        if self.scrubs or self.forgotten or self.forgotten_domains:
            return True
        return bool(self.urgent) or (bool(self.stores or self.spills) and len(self.spilling) < MAX_SPILLING)

    def sources(self) -> set[int]:
        """Keys of slots of the device that are still to be stored."""
        return {key for slots in self.stores.values() for key in slot_keys(slots)}

    def _stores_now(self, written: Container[int], scrubs: Sequence[int]) -> dict[Stay, tuple[int, ...]]:
        """Those that must be done now, and some ahead, as far as their host slots are not still to be spilled."""
        stores = {
            stay: slots
            for stay, slots in self.stores.items()
            if stay in self.urgent or any(key in written for key in slot_keys(slots))
        }
        spilled = {spill.host_slot for spill in self.spills.values()}
        num_spills = MAX_SPILLING - len(self.spilling) - sum(slot in spilled for slot in scrubs)
        num_spills -= sum(stay.slot in spilled for stay in stores)
        num_ahead = min(MAX_AHEAD, self._num_per_plan) - len(stores)
        for stay, slots in self.stores.items():
            if num_ahead <= 0:
                break
            is_spilled = stay.slot in spilled
            if stay not in stores and (num_spills > 0 or not is_spilled):
                stores[stay] = slots
                num_ahead -= 1
                num_spills -= is_spilled
        return stores

    def _spills_now(self, slots: Container[int]) -> dict[Stay, Spill]:
        """Those of `slots`, which are about to be overwritten, and some ahead."""
        spills = {stay: spill for stay, spill in self.spills.items() if spill.host_slot in slots}
        num_ahead = MAX_SPILLING - len(self.spilling) - len(spills)
        others = (each for each in self.spills.items() if each[0] not in spills)
        spills.update(islice(others, max(0, num_ahead)))
        return spills
