"""What the next plan moves between tiers, and what is on its way. Owned by `cache_store/lower_tiers.py`.

A store or spill that has not been taken yet is simply forgotten when its block goes. One that has been taken refers to
its stays until it is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from cache_store.block_name import BlockName
from cache_store.lower_block import Stay
from cache_store.transfers import HostStore, Moves, Spill, TransferId


@dataclass(frozen=True, slots=True)
class Taken:
    """Moves that are in a plan, and the stays that its stores write."""

    moves: Moves
    stored: tuple[Stay, ...]


class PendingMoves:
    """Queues of one engine."""

    def __init__(self, num_scrubs: int) -> None:
        self._num_scrubs = num_scrubs
        """With one plan at most."""
        self.stores: dict[Stay, tuple[int, ...]] = {}
        """Slots of the device by what they are stored to."""
        self.spills: dict[Stay, Spill] = {}
        self.scrubs: dict[int, None] = {}
        self.forgotten: dict[BlockName, None] = {}
        self.forgotten_domains: dict[bytes, None] = {}
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
        self.spills.pop(stay, None)

    def forget_domain(self, root: bytes) -> None:
        """Everything of the domain goes from disk."""
        for name in [each for each in self.forgotten if each.root == root]:
            del self.forgotten[name]
        self.forgotten_domains[root] = None

    def take(self) -> Taken:
        """All of them, for a plan; of the scrubs a part. One plan at a time: the one before has ended."""
        assert self.taken is None, "the plan that took the moves before has not ended"
        spilled = {spill.name for spill in self.spills.values()}
        for stay in self.stores:  # overwritten as a whole
            self.scrubs.pop(stay.slot, None)
        scrubs = tuple(islice(self.scrubs, self._num_scrubs))
        moves = Moves(
            spills=tuple(self.spills.values()),
            host_scrubs=scrubs,
            stores=tuple(HostStore(slots, stay.slot) for stay, slots in self.stores.items()),
            forgotten=tuple(name for name in self.forgotten if name not in spilled),
            forgotten_domains=tuple(self.forgotten_domains),
        )
        taken = Taken(moves, tuple(self.stores))
        self.spilling.update((spill.id, stay) for stay, spill in self.spills.items())
        for slot in scrubs:
            del self.scrubs[slot]
        for queue in (self.stores, self.spills, self.forgotten, self.forgotten_domains):
            queue.clear()
        self.taken = taken
        return taken

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
        self.forgotten.update(dict.fromkeys(taken.moves.forgotten))
        self.forgotten_domains.update(dict.fromkeys(taken.moves.forgotten_domains))

    @property
    def is_empty(self) -> bool:
        """Whether a plan has nothing to move."""
        return not (self.stores or self.spills or self.scrubs or self.forgotten or self.forgotten_domains)
