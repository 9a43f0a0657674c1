"""A mover whose background is moved by hand: a test delays, reorders, fails and tears what is on its way.

Bytes are real: they come from the copier of the runner's pools and go back to it. What a load has not brought yet
cannot be read by accident: its targets hold garbage from its start to its end, and its source is read at its end only,
so that a slot which is reused too soon shows in the tokens.

    manual = ManualMaker(num_disk_blocks=8)
    runner = DigestRunner(info, 16, INSTANT, clock.advance, num_host_blocks=8, make_mover=manual)
    manual.transfers.end(manual.transfers.pending[-1], Fate.TEAR)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cache_store.block_name import BlockName
from cache_store.errors import StemcacheError
from cache_store.transfers import NO_MOVES, Load, Moves, Spill, TransferId, TransferResult
from worker.block_copier import BlockCopier
from worker.step_plan import StepPlan

GARBAGE = 0x5A


class Fate(StrEnum):
    """How a transfer ends."""

    LATER = "later"
    """Not yet."""
    OK = "ok"
    FAIL = "fail"
    """A spill leaves nothing on disk; a load leaves garbage in its slots."""
    TEAR = "tear"
    """A spill reports ok, but what it wrote is not whole, so that loads of it fail. A load brings half of its bytes
    and fails."""


@dataclass(slots=True)
class PendingSpill:
    """On its way to disk."""

    spill: Spill
    data: bytes
    is_forgotten: bool = False
    """The block was removed from disk meanwhile: nothing stays of it."""


@dataclass(slots=True)
class PendingLoad:
    """On its way to the device."""

    load: Load


Pending = PendingSpill | PendingLoad


def never(_: Pending) -> Fate:
    """By hand only."""
    return Fate.LATER


def always(_: Pending) -> Fate:
    """As soon as it is asked for what has finished."""
    return Fate.OK


class ManualTransfers:
    """Implements `worker.mover.Mover` on one thread."""

    def __init__(
        self,
        copier: BlockCopier,
        num_disk_blocks: int = 0,
        decide: Callable[[Pending], Fate] = never,
        seconds: Callable[[Pending], float] = lambda _: 0.0,
    ) -> None:
        """`decide` is asked about all that is pending, in order, whenever the engine asks what has finished.

        `seconds` is what transfers report to have taken.
        """
        self.copier = copier
        self.decide = decide
        self.disk: dict[BlockName, bytes] = {}
        """What lies there, torn or not."""
        self.is_closed = False
        self.num_wakes = 0
        self.fail_moves: Exception | None = None
        """Raised by the next `move`, once, after half of its stores."""
        self._seconds = seconds
        self._num_disk_blocks = num_disk_blocks
        self._pending: dict[TransferId, Pending] = {}
        self._results: list[TransferResult] = []
        self._known: set[TransferId] = set()
        self._moved = NO_MOVES
        self._wake: Callable[[], None] = lambda: None

    @property
    def num_host_blocks(self) -> int:
        return self.copier.num_host_blocks

    @property
    def num_disk_blocks(self) -> int:
        return self._num_disk_blocks

    @property
    def block_bytes(self) -> int:
        return self.copier.block_bytes

    def read_device(self, slots: tuple[int, ...], into: memoryview) -> None:
        self.copier.read_device(slots, into)

    def read_host(self, host_slot: int, into: memoryview) -> None:
        self.copier.read(host_slot, into)

    @property
    def pending(self) -> tuple[TransferId, ...]:
        """Spills and loads that have not ended, oldest first."""
        return tuple(self._pending)

    @property
    def pending_loads(self) -> tuple[Load, ...]:
        return tuple(each.load for each in self._pending.values() if isinstance(each, PendingLoad))

    @property
    def pending_spills(self) -> tuple[Spill, ...]:
        return tuple(each.spill for each in self._pending.values() if isinstance(each, PendingSpill))

    def written_slots(self) -> set[int]:
        """Host slots in which anything but poison stands: ones in all bits."""
        poison = b"\xff" * self.copier.block_bytes
        return {slot for slot in range(self.num_host_blocks) if self._read(slot) != poison}

    def end(self, transfer: TransferId, fate: Fate = Fate.OK) -> None:
        """Ends one transfer, in any order."""
        assert fate is not Fate.LATER, "an end"
        pending = self._pending.pop(transfer)
        ok = self._end_spill(pending, fate) if isinstance(pending, PendingSpill) else self._end_load(pending, fate)
        self._report(transfer, ok, self._seconds(pending))

    def end_all(self, fate: Fate = Fate.OK) -> None:
        """Ends everything, oldest first."""
        for transfer in self.pending:
            self.end(transfer, fate)

    def finished(self) -> tuple[TransferResult, ...]:
        for transfer, pending in tuple(self._pending.items()):
            fate = self.decide(pending)
            if fate is not Fate.LATER:
                self.end(transfer, fate)
        results, self._results = tuple(self._results), []
        return results

    def notify(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def close(self) -> None:
        self.is_closed = True
        self.end_all(Fate.FAIL)
        self.disk.clear()

    def move(self, moves: Moves) -> None:
        assert not self.is_closed, "closed"
        self._check_sources(moves)
        self._moved = moves
        self._forget(moves)  # first: what is written anew under such a name stays
        for spill in moves.spills:
            self._begin(spill.id)
            self._pending[spill.id] = PendingSpill(spill, self._read(spill.host_slot))
        self.copier.scrub(moves.host_scrubs)
        error, self.fail_moves = self.fail_moves, None
        self.copier.store(moves.stores if error is None else moves.stores[::2])
        if error is not None:
            raise error

    def load(self, loads: Sequence[Load]) -> None:
        assert not self.is_closed, "closed"
        self.copier.begin_loads()
        for load in loads:
            self._begin(load.id)
            self.copier.fill(bytes([GARBAGE]) * self.copier.block_bytes, load.slots)
            self._pending[load.id] = PendingLoad(load)

    def give_up(self, plan: StepPlan) -> None:
        for transfer in (*plan.moves.spills, *plan.loads):
            if transfer.id not in self._known:
                self._begin(transfer.id)
                self._report(transfer.id, ok=False, seconds=0.0)
        if self._moved is not plan.moves:
            self._forget(plan.moves)

    def _begin(self, transfer: TransferId) -> None:
        assert transfer not in self._known, f"transfer {transfer} is asked for twice"
        self._known.add(transfer)

    def _check_sources(self, moves: Moves) -> None:
        read = {load.host_slot for load in self.pending_loads}
        written = {*moves.host_scrubs, *(store.host_slot for store in moves.stores)}
        assert read.isdisjoint(written), "a host slot is overwritten while a load reads it"

    def _end_spill(self, pending: PendingSpill, fate: Fate) -> bool:
        if fate is Fate.FAIL:
            return False
        if not pending.is_forgotten:
            assert len(self.disk) < self._num_disk_blocks, "more blocks on disk than fit"
            self.disk[pending.spill.name] = pending.data if fate is Fate.OK else pending.data[: len(pending.data) // 2]
        return True

    def _end_load(self, pending: PendingLoad, fate: Fate) -> bool:
        load = pending.load
        if fate is Fate.FAIL:
            return False
        if load.arrived is not None:
            data = bytes(load.arrived)
        else:
            data = self.disk.get(load.name, b"") if load.host_slot is None else self._read(load.host_slot)
        if fate is Fate.TEAR:
            half = len(data) // 2
            data = data[:half] + bytes([GARBAGE]) * (len(data) - half)
        try:
            self.copier.fill(data, load.slots)
        except StemcacheError:  # absent from disk, or torn there
            return False
        return fate is Fate.OK

    def _read(self, host_slot: int) -> bytes:
        buffer = bytearray(self.copier.block_bytes)
        self.copier.read(host_slot, memoryview(buffer))
        return bytes(buffer)

    def _forget(self, moves: Moves) -> None:
        names, roots = set(moves.forgotten), set(moves.forgotten_domains)

        def is_gone(name: BlockName) -> bool:
            return name in names or name.root in roots

        self.disk = {name: data for name, data in self.disk.items() if not is_gone(name)}
        for pending in self._pending.values():
            if isinstance(pending, PendingSpill) and is_gone(pending.spill.name):
                pending.is_forgotten = True

    def _report(self, transfer: TransferId, ok: bool, seconds: float) -> None:
        self._results.append(TransferResult(transfer, ok, seconds))
        self.num_wakes += 1
        self._wake()


class ManualMaker:
    """A `MakeMover` that keeps what it made."""

    def __init__(
        self,
        num_disk_blocks: int = 0,
        decide: Callable[[Pending], Fate] = never,
        seconds: Callable[[Pending], float] = lambda _: 0.0,
    ) -> None:
        self._num_disk_blocks = num_disk_blocks
        self._decide = decide
        self._seconds = seconds
        self._made: ManualTransfers | None = None

    def __call__(self, copier: BlockCopier) -> ManualTransfers:
        self._made = ManualTransfers(copier, self._num_disk_blocks, self._decide, self._seconds)
        return self._made

    @property
    def transfers(self) -> ManualTransfers:
        """Of the runner that was made with it."""
        assert self._made is not None, "no runner has been made"
        return self._made
