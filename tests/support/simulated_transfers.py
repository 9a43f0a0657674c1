"""A mover on a simulated clock: loads end when a real one's would, in the order in which they were started.

    make_mover = partial(SimulatedTransfers, clock=clock, durations=Durations(1.0, 0.1, load_block_s=0.01))
    runner = DigestRunner(info, 64, durations, clock.advance, num_host_blocks=256, make_mover=make_mover)

Whoever drives the clock advances it to `next_due_s` where an engine has nothing to do but to wait for loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache_store.clock import Clock
from cache_store.transfers import Load, Moves, TransferId, TransferResult
from tests.support.manual_transfers import Fate, ManualTransfers, Pending, PendingLoad
from worker.block_copier import BlockCopier
from worker.digest_runner import Durations
from worker.step_plan import StepPlan


class SimulatedTransfers:
    """Implements `worker.mover.Mover`: one thing is loaded at a time, writes to disk take no time."""

    def __init__(self, copier: BlockCopier, clock: Clock, durations: Durations, num_disk_blocks: int = 0) -> None:
        self.manual = ManualTransfers(copier, num_disk_blocks, self._decide, self._seconds)
        self._clock = clock
        self._durations = durations
        self._due_s: dict[TransferId, float] = {}
        self._free_s = 0.0

    @property
    def num_host_blocks(self) -> int:
        return self.manual.num_host_blocks

    @property
    def num_disk_blocks(self) -> int:
        return self.manual.num_disk_blocks

    @property
    def block_bytes(self) -> int:
        return self.manual.block_bytes

    def read_device(self, slots: tuple[int, ...], into: memoryview) -> None:
        self.manual.read_device(slots, into)

    def read_host(self, host_slot: int, into: memoryview) -> None:
        self.manual.read_host(host_slot, into)

    @property
    def next_due_s(self) -> float | None:
        """When the next load ends; None where none is on its way."""
        return min((self._due_s[load.id] for load in self.manual.pending_loads), default=None)

    def finished(self) -> tuple[TransferResult, ...]:
        results = self.manual.finished()
        for result in results:
            self._due_s.pop(result.id, None)
        return results

    def notify(self, wake: Callable[[], None]) -> None:
        self.manual.notify(wake)

    def close(self) -> None:
        self.manual.close()

    def move(self, moves: Moves) -> None:
        self.manual.move(moves)

    def load(self, loads: Sequence[Load]) -> None:
        self.manual.load(loads)
        for load in loads:
            self._free_s = max(self._free_s, self._clock.monotonic_s()) + self._load_s(load)
            self._due_s[load.id] = self._free_s

    def give_up(self, plan: StepPlan) -> None:
        self.manual.give_up(plan)

    def _load_s(self, load: Load) -> float:
        return self._durations.disk_block_s if load.host_slot is None else self._durations.load_block_s

    def _decide(self, pending: Pending) -> Fate:
        is_due = not isinstance(pending, PendingLoad) or self._due_s[pending.load.id] <= self._clock.monotonic_s()
        return Fate.OK if is_due else Fate.LATER

    def _seconds(self, pending: Pending) -> float:
        return self._load_s(pending.load) if isinstance(pending, PendingLoad) else 0.0
