"""Who runs in the next step: continuous batching with chunked prefill under a token budget.

Order of a step: every running sequence that decodes, then the running prefills, then admissions, each oldest first. Out
of blocks, the youngest running sequence is preempted and later recomputed; what it committed stays reusable. The oldest
is never preempted for another, and a sequence alone in the pool always fits (submission refuses what does not), so
something always ends. Knows no tensors and no outputs; owned by the engine's thread.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from itertools import count

from cache_store.prefix_tree import Block
from worker.allocation import Allocator
from worker.engine_config import EngineConfig
from worker.sequence import Age, Sequence
from worker.single_flight import find_flight
from worker.step_builder import StepBuilder
from worker.step_plan import SequenceId, StepPlan


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step: its plan, and the sequence of each row."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]


def _age(sequence: Sequence) -> Age:
    return sequence.age


class Scheduler:
    """Queues of sequences. Waiting ones hold no blocks; running ones hold blocks for all their tokens but the next."""

    def __init__(self, config: EngineConfig, allocator: Allocator, num_blocks: int, block_size: int) -> None:
        self._config = config
        self._allocator = allocator
        self._block_size = block_size
        self._num_watermark_blocks = config.watermark_blocks(num_blocks)
        self._ids = count()
        self._now_s = 0.0
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._ended: list[SequenceId] = []
        self.num_preemptions = 0
        """Since the start."""

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Oldest first."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Oldest first."""
        return tuple(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def queue(self, sequence: Sequence) -> None:
        """Lets a sequence wait in the order of its age."""
        sequence.num_expected = self._allocator.reusable_tokens(sequence)
        insort(self._waiting, sequence, key=_age)

    def drop(self, sequence: Sequence) -> None:
        """Forgets a sequence and gives back what it holds."""
        if sequence.id is None:
            self._waiting.remove(sequence)
        else:
            self._stop(sequence)

    def fork(self, trunk: Sequence, samples: tuple[int, ...]) -> Sequence:
        """A running sequence for some of the trunk's samples, from the trunk's computed tokens on."""
        twin = self._allocator.fork(trunk, samples, self._next_id())
        insort(self._running, twin, key=_age)
        return twin

    def schedule(self, now_s: float) -> Schedule:
        """The next step; changes queues and holds. A plan without rows where nothing waits or runs."""
        self._now_s = now_s
        step = StepBuilder(self._config.num_step_tokens, self._block_size)
        self._decode(step)
        self._prefill(step)
        self._admit(step)
        scrubs, copies = self._allocator.drain()
        ended, self._ended = tuple(self._ended), []
        entries = step.in_order()
        plan = StepPlan(rows=tuple(row for _, row in entries), scrubs=scrubs, copies=copies, ended=ended)
        return Schedule(plan, tuple(sequence for sequence, _ in entries))

    def check_invariants(self, pinned: tuple[Block, ...]) -> None:
        """Raises AssertionError where queues and holds contradict each other."""
        self._allocator.check_invariants(self.running, pinned)
        for queue in (self._waiting, self._running):
            ages = [sequence.age for sequence in queue]
            assert ages == sorted(set(ages)), "a queue is out of order or holds a sequence twice"
        for sequence in self._waiting:
            assert sequence.id is None
            assert not sequence.blocks
            assert sequence.copy_from is None
            assert sequence.num_computed == 0
        for sequence in self._running:
            assert sequence.id is not None
            assert sequence.num_remaining >= 1, "a running sequence has nothing to compute"
        assert self._num_running_samples() <= self._config.num_max_sequences

    def _decode(self, step: StepBuilder) -> None:
        for sequence in self.running:
            if sequence.num_remaining != 1 or sequence.id is None:
                continue
            while not self._allocator.make_room(sequence):
                victim = self._running[-1]  # never older than `sequence`, so never in this step yet
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                step.add(sequence)

    def _prefill(self, step: StepBuilder) -> None:
        for sequence in self._running:
            if sequence.num_remaining > 1 and step.num_left:
                step.add(sequence)

    def _admit(self, step: StepBuilder) -> None:
        num_samples = self._num_running_samples()
        for sequence in self.waiting:
            num_samples += len(sequence.samples)
            if not step.num_left or num_samples > self._config.num_max_sequences:
                return
            if self._is_in_flight(sequence):
                num_samples -= len(sequence.samples)
                continue
            if not self._start(sequence):
                return  # first come, first served: nobody overtakes for being smaller
            step.add(sequence)

    def _is_in_flight(self, sequence: Sequence) -> bool:
        if sequence.flight is None or not sequence.flight.is_on:
            num_reusable = self._allocator.reusable_tokens(sequence)
            sequence.flight = find_flight(sequence, num_reusable, self._running, self._block_size)
            sequence.num_expected = num_reusable
            if sequence.flight is not None:
                sequence.num_expected = min(sequence.flight.num_blocks * self._block_size, sequence.num_tokens - 1)
        return sequence.flight is not None

    def _start(self, sequence: Sequence) -> bool:
        num_forks = len(sequence.samples) - 1
        num_reserved = self._num_watermark_blocks + num_forks if self._running else 0
        if not self._allocator.place(sequence, num_reserved):
            return False
        self._waiting.remove(sequence)
        sequence.id = self._next_id()
        insort(self._running, sequence, key=_age)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._stop(sequence)
        sequence.rewind()
        sequence.owner.setbacks.stop(self._now_s)
        self.num_preemptions += 1
        self.queue(sequence)

    def _stop(self, sequence: Sequence) -> None:
        assert sequence.id is not None
        self._running.remove(sequence)
        self._allocator.release(sequence)
        self._ended.append(sequence.id)
        sequence.id = None

    def _next_id(self) -> SequenceId:
        return SequenceId(next(self._ids))

    def _num_running_samples(self) -> int:
        return sum(len(sequence.samples) for sequence in self._running)
