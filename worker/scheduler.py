"""Who runs in the next step: continuous batching with chunked prefill under a token budget, fair between tenants.

Order of a step: every running sequence that decodes; then the rest of the budget, in turns to the tenant that has had
the least service (`worker/fairness.py`), inside a tenant to the running prefills, oldest first, then to those that wait
(`worker/tenant_queue.py`, `worker/admission.py`). Prefixes decide nothing between tenants.

Something always ends. Running sequences either have all blocks that they will ever need, or can be preempted; a request
is preempted at most twice and then starts again only with all its blocks; where that takes what others are guaranteed,
it is ended when they claim it. So preemptions are finite, and what runs ends. Where nothing runs, nothing is held but
pins, which give way: the first that is tried starts, or needs more than is attainable and is given up. Who has waited
too long keeps the others from starting, so that it is reached.

Knows no tensors and no outputs; owned by the engine's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count

from cache_store.block_pool import BlockPool
from cache_store.domain import TenantId
from cache_store.policy import INTERRUPTED, PREEMPTED
from cache_store.prefix_tree import Block
from worker.admission import Admission
from worker.allocation import Allocator
from worker.engine_config import EngineConfig
from worker.pins import PinTable
from worker.preemption import MAX_PREEMPTIONS, yields_to_growth
from worker.sequence import ActiveRequest, Sequence
from worker.service import MIN_CHUNK_TOKENS, UNLIMITED, Service
from worker.single_flight import find_flight
from worker.step_builder import StepBuilder
from worker.step_plan import EMPTY_PLAN, Row, SequenceId, StepPlan
from worker.swap import Swap
from worker.tenant_queue import TenantQueue, by_age

LEAST_PART = 8
"""That part of the budget tenants may always use together, however little their service makes a step shorter."""


_Holds = tuple[int, int, int, int]
"""Loads, held blocks, used blocks, generation of quotas: what changes when something comes free."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step: its plan, and the sequence of each row."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    hopeless: tuple[Sequence, ...]
    """Waiting ones that will not get what they need."""


class Scheduler:
    """Queues of sequences by tenant, and the step that comes of them."""

    def __init__(self, config: EngineConfig, pool: BlockPool, block_size: int, pins: PinTable, swap: Swap) -> None:
        self._config = config
        self._pool = pool
        self._block_size = block_size
        self._queues: dict[TenantId, TenantQueue] = {}
        self._swap = swap
        self._allocator = Allocator(pool, block_size, swap, config.audit)
        self._service = Service(lambda tenant: pool.quotas.of(tenant).weight)
        self._admission = Admission(
            config, pool, self._allocator, pins, self._service, self._queues, self._preempt_request
        )
        self._ids = count()
        self._ended: list[SequenceId] = []
        self._step = StepBuilder(0, block_size)
        self._fresh: set[Sequence] = set()
        """Started in the step that is being made."""
        self._now_s = 0.0
        self._num_preemptions = 0
        self._stuck_at: _Holds | None = None
        """Where nothing runs, and those that wait lack what loads hold: there is no use in trying again."""

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Oldest first."""
        return tuple(sorted(chain.from_iterable(queue.waiting for queue in self._queues.values()), key=by_age))

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Oldest first."""
        return tuple(sorted(chain.from_iterable(queue.running for queue in self._queues.values()), key=by_age))

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything. Those that wait for blocks from a lower tier give it no work."""
        if self._allocator.has_upkeep:
            return True
        if self._stuck_at is not None and self._stuck_at == self._holds():
            return False
        return any(queue.has_work for queue in self._queues.values())

    @property
    def num_preemptions(self) -> int:
        """Requests that were preempted, each as often as it was."""
        return self._num_preemptions

    @property
    def num_stopped_admissions(self) -> int:
        """Steps in which somebody had to wait for blocks."""
        return self._admission.num_stopped

    def tick(self) -> None:
        """Time has passed: those that wait may have waited long enough."""
        self._stuck_at = None

    def queue(self, sequence: Sequence, now_s: float) -> None:
        """Lets a sequence wait in the order of its age."""
        self._stuck_at = None
        self._expect(sequence, now_s)
        tenant = sequence.owner.domain.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = TenantQueue(tenant)
        if not queue.is_backlogged:
            self._service.enter(tenant, self._backlogged())
        queue.wait(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forgets a sequence and gives back what it holds."""
        self._stuck_at = None
        queue = self._queue_of(sequence)
        if sequence.id is None:
            queue.waiting.remove(sequence)
            self._swap.stop_waiting(sequence)
            if not queue.waiting:
                queue.shortage = None
        else:
            self._stop(queue, sequence)
        if queue.is_empty:
            del self._queues[queue.tenant]

    def fork(self, trunk: Sequence, samples: tuple[int, ...]) -> Sequence:
        """A running sequence for some of the trunk's samples, from the trunk's computed tokens on."""
        twin = self._allocator.fork(trunk, samples, self._next_id())
        self._queue_of(trunk).run(twin)
        return twin

    def schedule(self, now_s: float) -> Schedule:
        """The next step; changes queues and holds. Its plan has no rows where nothing can be computed."""
        self._now_s = now_s
        self._fresh.clear()
        self._step = StepBuilder(self._config.num_step_tokens, self._block_size)
        self._admission.begin_step()
        num_loading = self._allocator.num_loading
        before = self._holds() if num_loading else None
        self._decode()
        self._serve()
        self._service.settle(self._backlogged())
        hopeless = self._admission.end_step()
        self._allocator.open_windows(self._step.chosen)
        entries = self._step.in_order()
        is_waiting = num_loading and not entries and not hopeless
        self._stuck_at = before if is_waiting and before == self._holds() else None  # nothing came free meanwhile
        if not entries and not self._allocator.has_upkeep:  # what is to be told waits for the next step
            return Schedule(EMPTY_PLAN, (), hopeless)
        plan = self._plan(tuple(row for _, row in entries))
        return Schedule(plan, tuple(sequence for sequence, _ in entries), hopeless)

    def schedule_alone(self, sequence: Sequence, num_reused: int) -> StepPlan | None:
        """A step of an idle engine that computes all of a sequence that is in no queue, but for what it reuses.

        None, and nothing has changed, where its tenant has no room for it without others' blocks, or where it is more
        than a step computes.
        """
        if not self._allocator.place_alone(sequence, num_reused):
            return None
        if sequence.num_remaining > self._config.num_step_tokens:
            self._allocator.release_alone(sequence)
            return None
        sequence.id = self._next_id()
        step = StepBuilder(self._config.num_step_tokens, self._block_size)
        step.take(sequence, sequence.num_remaining)
        self._allocator.open_windows(step.chosen)
        return self._plan(tuple(row for _, row in step.in_order()))

    def drop_alone(self, sequence: Sequence) -> None:
        """It gives back what it holds; no use of its blocks is noted."""
        assert sequence.id is not None
        self._allocator.release_alone(sequence)
        self._ended.append(sequence.id)
        sequence.id = None

    def commit(self, sequence: Sequence, num_computed: int) -> None:
        """So many more tokens of a running sequence are computed."""
        self._allocator.commit(sequence, num_computed)

    def end_step(self, schedule: Schedule, seconds: float) -> None:
        """The step has run, for that long."""
        self._allocator.end_step(schedule.plan)
        if schedule.sequences:
            self._service.note_step(zip(schedule.sequences, schedule.plan.rows, strict=True), seconds)

    def fail_step(self, schedule: Schedule) -> None:
        """The step has run or not, and nothing of it may be used."""
        self._allocator.fail_step(schedule.plan)

    def fits(self, request: ActiveRequest) -> bool:
        """Whether each of its sequences could run to its end within its tenant's maximum, if it were alone."""
        return all(self._admission.fits(sequence) for sequence in request.sequences)

    def check_invariants(self, pinned: tuple[Block, ...]) -> None:
        """Raises AssertionError where queues and holds contradict each other."""
        self._allocator.check_invariants(self.running, pinned)
        for tenant, queue in self._queues.items():
            assert queue.tenant == tenant
            queue.check_invariants()
        self._service.check_invariants(self._queues)
        for sequence in self.running:
            num_preemptions = sequence.owner.setbacks.num_preemptions
            assert num_preemptions <= MAX_PREEMPTIONS, "a request was preempted too often"
            assert sequence.owner.is_guarded or num_preemptions < MAX_PREEMPTIONS
            if sequence.owner.is_guarded:
                num_needed = self._allocator.full_blocks(sequence)
                assert len(sequence.blocks) + len(sequence.reserved) >= num_needed, "it may run out of blocks again"
        assert sum(queue.num_places for queue in self._queues.values()) <= self._config.num_max_sequences

    def _plan(self, rows: tuple[Row, ...]) -> StepPlan:
        upkeep = self._allocator.drain(rows)
        ended, self._ended = tuple(self._ended), []
        return StepPlan(
            rows=rows,
            scrubs=upkeep.scrubs,
            copies=upkeep.copies,
            ended=ended,
            moves=upkeep.moves,
            loads=upkeep.loads,
        )

    def _holds(self) -> _Holds:
        return (self._allocator.num_loading, self._pool.num_held, self._pool.num_used, self._pool.quotas.generation)

    def _decode(self) -> None:
        for sequence in self.running:
            if sequence.num_remaining == 1 and sequence.id is not None and self._make_room(sequence):
                self._step.take(sequence, 1)
                self._service.charge_decode(sequence)

    def _make_room(self, sequence: Sequence) -> bool:
        """False where it was preempted itself."""
        while not self._allocator.make_room(sequence):
            queue = self._queue_of(sequence)
            room = self._admission.room_to_maximum(sequence)
            self._preempt_request(
                yields_to_growth(self._admission.party(queue), list(self._admission.others(queue, 1)), room)
            )
            if sequence.id is None:
                return False
        return True

    def _serve(self) -> None:
        hungry = list(self._queues.values())
        num_least = max(MIN_CHUNK_TOKENS, self._config.num_step_tokens // LEAST_PART)
        while hungry and self._step.num_left:
            queue = min(hungry, key=lambda queue: self._service.of(queue.tenant))
            limit = self._service.limit(queue.tenant, self._queues, num_least)
            sequence = self._next(queue) if limit > 0 else None
            if sequence is None:
                hungry.remove(queue)
                continue
            num_most = self._service.turn(queue.tenant, (each.tenant for each in hungry if each is not queue))
            num_tokens = self._step.take(sequence, min(limit, num_most))
            self._service.charge_prefill(sequence, num_tokens)
            if limit < UNLIMITED:
                self._service.note_limited(num_tokens)

    def _next(self, queue: TenantQueue) -> Sequence | None:
        """Whose prompt is computed next, started where it was not; None where the tenant has no more to compute."""
        for sequence in queue.running:
            if sequence.is_prefilling and self._step.remaining(sequence):
                return sequence
        for sequence in queue.candidates(self._now_s, self._refresh):
            if not self._admission.may_start(queue, sequence) or self._is_in_flight(queue, sequence):
                continue
            if self._admission.place(queue, sequence, self._now_s):
                if sequence.waits_for_swap:
                    continue
                sequence.id = self._next_id()
                self._fresh.add(sequence)
                queue.start(sequence, self._now_s)
                return sequence
            if not self._admission.is_hopeless(sequence):
                return None  # nobody of a tenant overtakes for being smaller
        return None

    def _is_in_flight(self, queue: TenantQueue, sequence: Sequence) -> bool:
        if not sequence.waits_for_flight:
            self._expect(sequence, self._now_s)
            sequence.flight = find_flight(sequence, sequence.num_expected, queue.running, self._block_size)
            if sequence.flight is not None:
                sequence.flight.leader.marks.add(sequence.flight.num_blocks)
                num_flown = sequence.flight.num_blocks * self._block_size
                sequence.num_expected = min(num_flown, sequence.num_tokens - 1)
        return sequence.flight is not None

    def _expect(self, sequence: Sequence, now_s: float) -> None:
        sequence.num_expected = self._allocator.reusable_tokens(sequence)
        sequence.expected_at_s = now_s

    def _refresh(self, sequence: Sequence) -> None:
        self._expect(sequence, self._now_s)

    def _preempt_request(self, request: ActiveRequest) -> None:
        queue = self._queues[request.domain.tenant]
        running = [sequence for sequence in queue.running if sequence.owner is request]
        is_fresh = all(sequence in self._fresh for sequence in running)  # it has not run, and loses nothing
        is_guest = request.setbacks.num_preemptions >= MAX_PREEMPTIONS
        if not is_fresh and not is_guest:
            request.setbacks.preempt(sum(not sequence.is_stopped for sequence in running), self._now_s)
            request.is_guarded = request.is_guarded or request.setbacks.num_preemptions >= MAX_PREEMPTIONS
            self._num_preemptions += 1
        for sequence in running:
            is_stopped = sequence.is_stopped or sequence not in self._fresh
            self._step.drop(sequence)
            self._service.refund(sequence)
            self._stop(queue, sequence, PREEMPTED)
            sequence.rewind()
            sequence.is_stopped = is_stopped
            self.queue(sequence, self._now_s)
            if is_guest and not is_fresh:
                self._admission.give_up(sequence)

    def _stop(self, queue: TenantQueue, sequence: Sequence, interruption: str = INTERRUPTED) -> None:
        assert sequence.id is not None
        queue.running.remove(sequence)
        self._allocator.release(sequence, interruption)
        self._ended.append(sequence.id)
        sequence.id = None

    def _next_id(self) -> SequenceId:
        return SequenceId(next(self._ids))

    def _queue_of(self, sequence: Sequence) -> TenantQueue:
        return self._queues[sequence.owner.domain.tenant]

    def _backlogged(self) -> list[TenantId]:
        return [queue.tenant for queue in self._queues.values() if queue.is_backlogged]
