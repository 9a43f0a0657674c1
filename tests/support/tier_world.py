"""A device, a host's memory and a disk that hold names instead of bytes, and moves between them that a test ends.

A slot's content is (domain number, all tokens up to the block's end), or None where nobody's bytes are there. What is
read too soon, or written too late, shows as another content. A failed plan did part of what it should.
"""

from __future__ import annotations

from random import Random

from cache_store.block_name import BlockName
from cache_store.transfers import Load, Moves, Spill, TransferId, TransferResult

Content = tuple[int, tuple[int, ...]] | None


class TierWorld:
    """Contents of all slots, and what is on its way."""

    def __init__(self, num_device: int, num_host: int, num_disk: int) -> None:
        self.device: list[Content] = [None] * num_device
        self.host: list[Content] = [None] * num_host
        self.disk: dict[BlockName, Content] = {}
        self.num_disk = num_disk
        self.spills: dict[TransferId, tuple[Spill, Content]] = {}
        self.loads: dict[TransferId, Load] = {}
        self.known: set[TransferId] = set()
        self.failed: list[TransferResult] = []

    def run(self, moves: Moves) -> None:
        """All of them; loads go on reading their sources."""
        for spill in moves.spills:
            self._start(spill)
        self._scrub(moves.host_scrubs)
        self._store(moves)
        self._forget(moves)

    def fail(self, moves: Moves, random: Random) -> None:
        """Some of them, before the plan failed. Spills report whether they were begun or not; what goes is gone."""
        for spill in moves.spills:
            if random.random() < 0.5:
                self._start(spill)
            else:
                self._name(spill.id)
                self.failed.append(TransferResult(spill.id, ok=False, seconds=0.0))
        if random.random() < 0.5:
            self._scrub(moves.host_scrubs)
            for store in moves.stores:
                if random.random() < 0.5:
                    self.host[store.host_slot] = self.device[store.slots[0]]
        if random.random() < 0.5:
            self._forget(moves)

    def start(self, load: Load) -> None:
        """In the background; until its end the device's slots hold anything."""
        self._name(load.id)
        self.loads[load.id] = load
        self.device[load.slots[0]] = None

    def end_load(self, load: Load) -> Content:
        """What comes from where it was when the load ends."""
        del self.loads[load.id]
        content = self.disk.get(load.name) if load.host_slot is None else self.host[load.host_slot]
        self.device[load.slots[0]] = content
        return content

    def end_spill(self, identifier: TransferId, ok: bool) -> TransferResult:
        """The content that its slot had when it was begun is on disk, or nothing is."""
        spill, content = self.spills.pop(identifier)
        if ok:
            assert len(self.disk) < self.num_disk, "more blocks on disk than fit"
            self.disk[spill.name] = content
        return TransferResult(identifier, ok, 0.25)

    def _start(self, spill: Spill) -> None:
        self._name(spill.id)
        self.spills[spill.id] = (spill, self.host[spill.host_slot])

    def _scrub(self, slots: tuple[int, ...]) -> None:
        read = {load.host_slot for load in self.loads.values()}
        for slot in slots:
            assert slot not in read, "a slot is scrubbed while a load reads it"
            self.host[slot] = None

    def _store(self, moves: Moves) -> None:
        read = {load.host_slot for load in self.loads.values()}
        for store in moves.stores:
            assert store.host_slot not in read, "a slot is overwritten while a load reads it"
            self.host[store.host_slot] = self.device[store.slots[0]]

    def _forget(self, moves: Moves) -> None:
        for name in moves.forgotten:
            assert name not in {spill.name for spill, _ in self.spills.values()}, "a removal overtakes its write"
            self.disk.pop(name, None)
        for root in moves.forgotten_domains:
            for name in [each for each in self.disk if each.root == root]:
                del self.disk[name]

    def _name(self, identifier: TransferId) -> None:
        assert identifier not in self.known, "a transfer is asked for twice"
        self.known.add(identifier)
