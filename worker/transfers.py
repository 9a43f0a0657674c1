"""Moves blocks between the tiers: at once what the plan's order asks for, in the background what takes long.

Stores and scrubs are done on the engine's thread, and domains are dropped from disk there. Writes to disk are copied to
a bounded staging buffer and leave it on a thread that writes and removes in order; loads run on another one, a few
blocks at a time, tenants in turn. Knows bytes and slots, not which block is worth keeping where. A thread that dies
ends the worker: the next call of `finished`, `move` or `load` raises.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog

from cache_store.block_name import BlockName
from cache_store.clock import Clock
from cache_store.errors import NotStoredError, PreconditionError, StemcacheError
from cache_store.transfers import NO_MOVES, Load, Moves, Spill, TransferId, TransferResult
from worker.block_copier import BlockCopier
from worker.mover import DiskFiles
from worker.step_plan import StepPlan
from worker.transfer_results import TransferResults
from worker.turns import LoadTurns
from worker.write_queue import Remove, Write, WriteQueue

STAGING_BYTES = 64 << 20
"""Of blocks that wait to be written to disk; at least two blocks."""

STAGING_WAIT_S = 0.1
"""For which a plan waits for the disk, where what is on its way to it fills the staging buffer. What finds no room then
is lost to the cache."""

FIRM_WAIT_S = 0.5
"""The same for blocks of strict tenants."""

TURN_BYTES = 1 << 20
"""Loaded for one tenant before another one's turn; at least a block."""

CLOSE_TIMEOUT_S = 10.0
"""For each thread to end what it is just doing."""

_log = structlog.get_logger(__name__)


class BackgroundError(Exception):
    """A thread of the tiers died."""


@dataclass(frozen=True, slots=True)
class DiskTier:
    """Where blocks lie below the host's memory."""

    files: DiskFiles
    num_blocks: int
    close: Callable[[], None]
    """Removes everything."""


class BackgroundTransfers:
    """Implements `worker.mover.Mover`. Two threads at most; without a disk, one."""

    def __init__(
        self,
        copier: BlockCopier,
        disk: DiskTier | None,
        clock: Clock,
        staging_bytes: int = STAGING_BYTES,
        turn_bytes: int = TURN_BYTES,
    ) -> None:
        self._copier = copier
        self._disk = disk
        self._clock = clock
        self._results = TransferResults()
        self._loads = LoadTurns(max(1, turn_bytes // copier.block_bytes))
        self._writes = WriteQueue()
        self._buffers: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._moved = NO_MOVES
        """The last moves that were begun."""
        self._begun: set[TransferId] = set()
        """Spills of `_moved`, and loads, that were begun."""
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._is_failing = False
        self._read_buffer = bytearray(0 if disk is None else copier.block_bytes)
        self._threads = [self._thread("tier-loads", self._load_all)]
        if disk is not None:
            for _ in range(max(2, staging_bytes // copier.block_bytes)):
                self._buffers.put(bytearray(copier.block_bytes))
            self._threads.append(self._thread("tier-writes", partial(self._write_all, disk.files)))
        for thread in self._threads:
            thread.start()

    @property
    def num_host_blocks(self) -> int:
        return self._copier.num_host_blocks

    @property
    def num_disk_blocks(self) -> int:
        return 0 if self._disk is None else self._disk.num_blocks

    @property
    def block_bytes(self) -> int:
        return self._copier.block_bytes

    def read_device(self, slots: tuple[int, ...], into: memoryview) -> None:
        self._copier.read_device(slots, into)

    def read_host(self, host_slot: int, into: memoryview) -> None:
        self._copier.read(host_slot, into)

    def finished(self) -> tuple[TransferResult, ...]:
        self._check()
        return self._results.take()

    def notify(self, wake: Callable[[], None]) -> None:
        self._results.notify(wake)

    def move(self, moves: Moves) -> None:
        self._check()
        self._moved = moves
        self._begun.clear()
        if not moves:
            return
        self._remove(moves.forgotten)  # first: it makes room, and what is written anew under such a name stays
        try:
            now_s = self._clock.monotonic_s()
            for spill in moves.spills:
                self._begin(spill.id)
                self._stage(spill, now_s + (FIRM_WAIT_S if spill.is_firm else STAGING_WAIT_S))
            self._copier.scrub(moves.host_scrubs)
            self._copier.store(moves.stores)
        finally:
            self._remove_domains(moves)

    def load(self, loads: Sequence[Load]) -> None:
        self._check()
        if not loads:
            return
        self._copier.begin_loads()
        for load in loads:
            self._begin(load.id)
        if self._closing.is_set():
            self._results.fail(load.id for load in loads)
        else:
            self._loads.put(loads)

    def give_up(self, plan: StepPlan) -> None:
        if self._moved is not plan.moves:
            self._moved = plan.moves
            self._begun.clear()
            self._remove(plan.moves.forgotten)
            self._remove_domains(plan.moves)
        for transfer in (*(spill.id for spill in plan.moves.spills), *(load.id for load in plan.loads)):
            if transfer not in self._begun:
                self._begin(transfer)
                self._results.end(transfer, ok=False)

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._loads.close()
        self._writes.close()
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                _log.error("tier_thread_hangs", thread=thread.name)
        self._results.fail_all()
        if self._disk is not None and not any(thread.is_alive() for thread in self._threads):
            self._disk.close()  # else the next start removes what a hung disk keeps

    def _check(self) -> None:
        if self._failure is not None:
            raise BackgroundError("a thread that moves blocks between tiers died") from self._failure

    def _begin(self, transfer: TransferId) -> None:
        self._begun.add(transfer)
        self._results.begin(transfer)

    def _stage(self, spill: Spill, until_s: float) -> None:
        buffer = None if self._closing.is_set() else self._buffer(spill, until_s)
        if buffer is None:  # the disk is slower than what comes
            self._results.end(spill.id, ok=False)
            return
        self._copier.read(spill.host_slot, memoryview(buffer))
        self._writes.put(Write(spill.id, spill.name, buffer, spill.tenant, spill.is_firm))

    def _buffer(self, spill: Spill, until_s: float) -> bytearray | None:
        """A free one; where there is none the tenant with most writes waiting gives way, or the disk is waited for."""
        if self._buffers.empty() and (write := self._writes.make_way(spill)) is not None:
            self._results.end(write.id, ok=False)
            self._give_back(write.buffer)
        try:
            return self._buffers.get(timeout=max(0.001, until_s - self._clock.monotonic_s()))
        except queue.Empty:
            return None

    def _remove(self, names: Iterable[BlockName]) -> None:
        for name in names:
            self._writes.put(Remove(name))

    def _remove_domains(self, moves: Moves) -> None:
        """At once, whatever else waits for the disk."""
        roots = frozenset(moves.forgotten_domains)
        if not roots:
            return
        for write in self._writes.drop(roots):
            self._give_back(write.buffer)
            self._results.end(write.id, ok=False)
        if self._disk is not None and not self._closing.is_set():
            self._disk.files.remove_domains(roots)

    def _give_back(self, buffer: bytearray) -> None:
        _wipe(buffer)
        self._buffers.put(buffer)

    # In the background.

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # a thread's last act is to say why it ends
                self._failure = error
                _log.error("tier_thread_died", thread=name, exc_info=error)
                self._results.wake()

        return threading.Thread(target=guarded, name=name, daemon=True)

    def _load_all(self) -> None:
        while loads := self._loads.take():
            self._expect(self._loads.fresh())
            for load in loads:
                if not self._closing.is_set():  # `close` tells the others
                    self._end(load.id, partial(self._load, load))

    def _load(self, load: Load) -> None:
        if load.arrived is not None:
            self._land(load.arrived, load)
        elif load.host_slot is not None:
            self._copier.load(load.host_slot, load.slots)
        elif self._disk is not None:
            self._read(self._disk.files, load)
        else:
            raise PreconditionError("a block is to be read from a disk that is not there")

    def _land(self, arrived: bytearray, load: Load) -> None:
        try:
            self._copier.fill(arrived, load.slots)
        finally:
            _wipe(arrived)

    def _read(self, files: DiskFiles, load: Load) -> None:
        try:
            files.read_into(load.name, self._read_buffer)
            self._copier.fill(self._read_buffer, load.slots)
        finally:
            _wipe(self._read_buffer)

    def _expect(self, loads: Iterable[Load]) -> None:
        """The disk fetches what is behind those that are read first."""
        if self._disk is not None:
            self._disk.files.prefetch([load.name for load in loads if load.host_slot is None and load.arrived is None])

    def _write_all(self, files: DiskFiles) -> None:
        while (item := self._writes.take()) is not None:
            if isinstance(item, Write):
                self._end(item.id, partial(self._write, files, item))
                self._give_back(item.buffer)
            else:
                files.remove(item.name)

    def _write(self, files: DiskFiles, write: Write) -> None:
        files.write(write.name, write.buffer)
        if self._writes.is_void():
            files.remove(write.name)
            raise NotStoredError("the domain of a block was dropped while it was written")

    def _end(self, transfer: TransferId, work: Callable[[], None]) -> None:
        """Does it and reports it. What disks do wrong is a miss, not an error."""
        started_s = self._clock.monotonic_s()
        ok = True
        try:
            work()
        except (StemcacheError, OSError) as error:
            ok = False
            if not self._is_failing:  # the first one of a row tells what is the matter
                _log.warning("transfer_failed", error=type(error).__name__)
        self._is_failing = not ok
        self._results.end(transfer, ok, self._clock.monotonic_s() - started_s)


def _wipe(buffer: bytearray) -> None:
    """Buffers are used for all domains: they keep nothing of a block, which may be purged."""
    np.frombuffer(buffer, dtype=np.uint8).fill(0)
