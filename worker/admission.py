"""Whether a waiting sequence can start: places, blocks, and what gives way for it when there are none.

In this order: the pool lends back and evicts; pins of the tenant end where nothing of it runs; requests of tenants
above their entitlement are preempted (`worker/preemption.py`); else the sequence waits, and who has waited too long
keeps others from starting: first those above their part, at last all that are not within a guarantee. What not even an
idle pool could give is hopeless.
Knows queues, holds and pins; the scheduler owns the queues and preempts. Owned by the engine's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from cache_store.block_pool import BlockPool
from cache_store.domain import Domain, TenantId
from cache_store.usage import TenantUse
from worker.allocation import Allocator
from worker.engine_config import EngineConfig
from worker.pins import PinTable
from worker.preemption import Candidate, Demand, Party, makes_way
from worker.sequence import ActiveRequest, Sequence
from worker.service import Service
from worker.tenant_queue import Shortage, TenantQueue

PATIENCE_S = 10.0
"""Who has waited that long for blocks or places is next, before whoever would need less but has more than its part."""

LAST_PATIENCE_S = 30.0
"""And after that long before everybody who is not within a guarantee."""

Preempt = Callable[[ActiveRequest], None]


class Admission:
    """Starts sequences."""

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        allocator: Allocator,
        pins: PinTable,
        service: Service,
        queues: Mapping[TenantId, TenantQueue],
        preempt: Preempt,
    ) -> None:
        self._config = config
        self._pool = pool
        self._allocator = allocator
        self._pins = pins
        self._service = service
        self._queues = queues
        self._preempt = preempt
        self._is_short = False
        self._hopeless: list[Sequence] = []
        self._num_stopped = 0

    @property
    def num_stopped(self) -> int:
        """Steps in which somebody had to wait for blocks."""
        return self._num_stopped

    def begin_step(self) -> None:
        """A step is about to be made."""
        self._is_short = False
        self._hopeless.clear()

    def end_step(self) -> tuple[Sequence, ...]:
        """Those that wait for what they will not get."""
        self._num_stopped += self._is_short
        return tuple(self._hopeless)

    def is_hopeless(self, sequence: Sequence) -> bool:
        """Whether it was given up in this step."""
        return sequence in self._hopeless

    def may_start(self, queue: TenantQueue, sequence: Sequence) -> bool:
        """False where it has to wait for others that cannot be preempted any more, as it cannot be.

        Those of a tenant together take no more than it would be entitled to if one more of its weight came, so that
        whoever comes finds its part; one of them may always run. Those of all leave everybody's guarantee within reach,
        also where it is not used just then. One that is too large for that runs beside no other of its kind, as a
        *guest*: it is ended when a guarantee is claimed.
        """
        if not sequence.owner.is_guarded:
            return True
        if not self._leaves_guarantees(queue, sequence):
            return False
        guarded = [each for each in queue.running if each.owner.is_guarded]
        if not guarded:
            return True
        weight = self._service.weight(queue.tenant)
        part = weight / (weight + sum(self._service.weight(other) for other in self._queues))
        guaranteed = self._pool.use_of(sequence.owner.domain).guaranteed_blocks
        num_blocks = sum(map(_num_taken, guarded))
        num_places = sum(len(each.samples) for each in (*guarded, sequence))
        return (
            num_blocks + self._allocator.full_blocks(sequence) <= max(guaranteed, part * self._pool.num_blocks)
            and num_places <= part * self._config.num_max_sequences
        )

    def give_up(self, sequence: Sequence) -> None:
        """It ran as a guest, and a guarantee was claimed."""
        self._hopeless.append(sequence)

    def _leaves_guarantees(self, queue: TenantQueue, sequence: Sequence) -> bool:
        guarded = [each for other in self._queues.values() for each in other.running if each.owner.is_guarded]
        if not guarded:
            return True
        kept = self._pool.guarantees()
        taken = Counter({queue.tenant: self._allocator.full_blocks(sequence)})
        for each in guarded:
            taken[each.owner.domain.tenant] += _num_taken(each)
        return sum(max(kept.get(tenant, 0), taken[tenant]) for tenant in {*kept, *taken}) <= self._pool.num_blocks

    def _is_guest(self, sequence: Sequence) -> bool:
        """Whether it could not be preempted and holds what others are guaranteed."""
        if not sequence.owner.is_guarded:
            return False
        tenant = sequence.owner.domain.tenant
        guaranteed = self._pool.guarantees()
        own = guaranteed.pop(tenant, 0)
        return max(own, _num_taken(sequence)) > self._pool.num_blocks - sum(guaranteed.values())

    def place(self, queue: TenantQueue, sequence: Sequence, now_s: float) -> bool:
        """Gives the sequence what it needs to run. False where it has to wait; others may have been preempted."""
        if sequence in self._hopeless or self._is_held_back(queue, sequence, now_s):
            return False
        if self._first_in_line(now_s) is queue and all(each.id is None for each in sequence.owner.sequences):
            sequence.owner.is_guarded = True  # who comes next would take its blocks again
        missing_places = self._missing_places(sequence)
        if missing_places and not self._is_entitled_to_places(queue, sequence):  # the usual case of a busy worker
            queue.fall_short(Shortage(0, missing_places), now_s)
            return False
        demand = self._try(queue, sequence)
        if demand is not None and demand.missing_blocks and not queue.running and self._end_pins(queue, demand, now_s):
            demand = self._try(queue, sequence)
        if demand is not None and self._make_way(queue, demand):
            demand = self._try(queue, sequence)
        if demand is None:
            return True
        self._fall_short(queue, sequence, demand, now_s)
        return False

    def party(self, queue: TenantQueue) -> Party:
        """The tenant's standing, and who of it may be preempted."""
        return self._party(queue, self._pool.use_of(_domain_of(queue)), self._candidates(queue))

    def others(self, queue: TenantQueue, num_blocks: int) -> Iterator[Party]:
        """All other tenants of which something runs, where the queue's tenant asks for `num_blocks` more.

        Guests are candidates as well where it is guaranteed that many.
        """
        own = self._pool.use_of(_domain_of(queue))
        is_claim = own.held_blocks + num_blocks <= own.guaranteed_blocks
        for other in self._queues.values():
            if other is not queue and other.running:
                guests = self._guests(other) if is_claim else ()
                yield self._party(other, self._pool.use_of(_domain_of(other)), (*self._candidates(other), *guests))

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence holds all that it will need, or its tenant may have that much."""
        num_needed = self._allocator.full_blocks(sequence)
        return _num_taken(sequence) >= num_needed or num_needed <= self._pool.max_blocks(sequence.owner.domain)

    def room_to_maximum(self, sequence: Sequence) -> int:
        """Blocks that its tenant may have beside those that it holds, however many are free."""
        use = self._pool.use_of(sequence.owner.domain)
        return use.max_blocks - use.held_blocks

    def _candidates(self, queue: TenantQueue) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(request, self._allocator.num_loose(sequences), sum(len(each.samples) for each in sequences))
            for request, sequences in reversed(queue.requests().items())
            if not request.is_guarded
        )

    def _guests(self, queue: TenantQueue) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(request, self._allocator.num_loose(sequences), sum(len(each.samples) for each in sequences))
            for request, sequences in queue.requests().items()
            if any(map(self._is_guest, sequences))
        )

    def _party(self, queue: TenantQueue, use: TenantUse, candidates: tuple[Candidate, ...]) -> Party:
        part = self._part(queue.tenant)
        return Party(
            tenant=queue.tenant,
            service_s=self._service.of(queue.tenant),
            num_blocks=use.held_blocks,
            num_places=queue.num_places,
            guaranteed=use.guaranteed_blocks,
            fair_blocks=part * self._pool.num_blocks,
            fair_places=part * self._config.num_max_sequences,
            candidates=candidates,
        )

    def _part(self, tenant: TenantId) -> float:
        total = sum(self._service.weight(other) for other in self._queues)
        return self._service.weight(tenant) / total

    def _num_running(self) -> int:
        return sum(queue.num_places for queue in self._queues.values())

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing will come free by itself."""
        return not self._num_running() and not self._allocator.num_loading

    def _try(self, queue: TenantQueue, sequence: Sequence) -> Demand | None:
        """None: it is placed."""
        missing_places = self._missing_places(sequence)
        num_ahead = self._num_ahead(sequence)
        num_spare = self._spare(queue, sequence, num_ahead)
        room = self.room_to_maximum(sequence)
        find = self._allocator.fit if missing_places else self._allocator.place
        fit = find(sequence, num_ahead, num_spare)
        if not fit.num_missing and not missing_places:
            return None
        is_own_limit = fit.num_missing > 0 and fit.num_asked + num_spare > room
        return Demand(fit.num_asked, len(sequence.samples), fit.num_missing, missing_places, is_own_limit)

    def _missing_places(self, sequence: Sequence) -> int:
        return max(0, self._num_running() + len(sequence.samples) - self._config.num_max_sequences)

    def _is_entitled_to_places(self, queue: TenantQueue, sequence: Sequence) -> bool:
        fair_places = self._part(queue.tenant) * self._config.num_max_sequences
        return queue.num_places + len(sequence.samples) <= fair_places

    def _num_ahead(self, sequence: Sequence) -> int:
        return self._allocator.blocks_ahead(sequence) if sequence.owner.is_guarded else 0

    def _spare(self, queue: TenantQueue, sequence: Sequence, num_ahead: int) -> int:
        """Blocks that stay available beside it, so that what runs can grow; in the tenant's own part, if that is less.

        A tenant of which nothing runs can use its whole part, whoever else runs. A strict one looks at its own only:
        nobody else could grow into its part, and what it finds depends on what is left.
        """
        is_strict = self._pool.quotas.of(queue.tenant).share(self._pool.kind).is_strict
        if num_ahead or not (queue.running if is_strict else self._num_running()):
            return 0
        use = self._pool.use_of(sequence.owner.domain)
        num_spare = self._config.watermark_blocks(use.max_blocks) + len(sequence.samples) - 1
        if queue.running:
            return num_spare
        room = use.max_blocks - use.held_blocks - self._allocator.blocks_for(sequence.num_tokens)
        return max(0, min(num_spare, room))

    def _is_held_back(self, queue: TenantQueue, sequence: Sequence, now_s: float) -> bool:
        first = self._first_in_line(now_s)
        if first is None or first is queue:
            return False
        assert first.shortage is not None
        use = self._pool.use_of(sequence.owner.domain)
        num_blocks = use.held_blocks + self._allocator.blocks_for(sequence.num_tokens)
        if num_blocks <= use.guaranteed_blocks and not first.shortage.num_places:
            return False
        is_within_part = num_blocks <= self._part(queue.tenant) * self._pool.num_blocks
        is_within_part = is_within_part and self._is_entitled_to_places(queue, sequence)
        return not is_within_part or now_s - first.short_since_s >= LAST_PATIENCE_S

    def _first_in_line(self, now_s: float) -> TenantQueue | None:
        """Who has waited longest for what others hold, and too long."""
        short = (queue for queue in self._queues.values() if queue.shortage is not None)
        first = min(short, key=lambda queue: queue.short_since_s, default=None)
        return first if first is not None and now_s - first.short_since_s >= PATIENCE_S else None

    def _end_pins(self, queue: TenantQueue, demand: Demand, now_s: float) -> int:
        """Its tenant's first; those of tenants above their guarantee where it is within its own, or cannot wait.

        It cannot where nothing runs or is on its way to the device, or where it has waited so long that others wait for
        it: what runs within guarantees may never pause.
        """
        num_freed = 0 if queue.is_loading else self._pins.yield_for((queue.tenant,), demand.missing_blocks)
        if num_freed >= demand.missing_blocks:
            return num_freed
        own = self._pool.use_of(_domain_of(queue))
        is_guaranteed = own.held_blocks + demand.num_blocks <= own.guaranteed_blocks
        if is_guaranteed or self._is_at_rest or self._first_in_line(now_s) is queue:
            above = [use.tenant for use in self._pool.usage() if _is_above(use) and use.tenant != queue.tenant]
            num_freed += self._pins.yield_for(above, demand.missing_blocks - num_freed)
        return num_freed

    def _make_way(self, queue: TenantQueue, demand: Demand) -> bool:
        asking = self._party(queue, self._pool.use_of(_domain_of(queue)), candidates=())
        victims = makes_way(asking, self.others(queue, demand.num_blocks), demand)
        for request in victims:
            self._preempt(request)
        return bool(victims)

    def _fall_short(self, queue: TenantQueue, sequence: Sequence, demand: Demand, now_s: float) -> None:
        if demand.missing_blocks:
            self._is_short = True
        if demand.is_own_limit:
            queue.shortage = None  # nobody else keeps it from running, and waiting for itself earns no credit
            self._service.enter(queue.tenant, [each.tenant for each in self._queues.values() if each.is_backlogged])
        else:
            queue.fall_short(Shortage(demand.missing_blocks, demand.missing_places), now_s)
        has_waited = queue.shortage is not None and now_s - queue.short_since_s >= PATIENCE_S
        if demand.missing_blocks and (has_waited or self._is_at_rest):
            num_needed = self._allocator.blocks_for(sequence.num_tokens) + self._num_ahead(sequence)
            if num_needed > self._pool.attainable_blocks(sequence.owner.domain):
                self._hopeless.append(sequence)


def _num_taken(sequence: Sequence) -> int:
    return len(sequence.blocks) + len(sequence.reserved)


def _domain_of(queue: TenantQueue) -> Domain:
    return (queue.running or queue.waiting)[0].owner.domain


def _is_above(use: TenantUse) -> bool:
    return use.used_blocks > use.guaranteed_blocks
