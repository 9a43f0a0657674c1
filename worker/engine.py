"""The engine: schedule → run → commit.

Takes requests, gives outputs, and is the only one that calls the runner. Knows no tensors, text or network; a domain is
compared, never read. One thread owns the engine and everything below it; nothing here locks.
"""

from __future__ import annotations

import itertools
import traceback
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import structlog

from cache_store.clock import Clock
from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import AdapterDigest, Domain, DomainTag, FormatDigest, TenantId
from cache_store.errors import ComputationError, InvalidRequestError, StemcacheError, UnavailableError
from cache_store.events import BlockEvent
from cache_store.prefix_tree import Block
from cache_store.quota import QuotaTable
from cache_store.registry import WorkerLoad
from cache_store.scrubs import Dropped
from cache_store.tokens import PackedTokens, count
from cache_store.usage import CachedTokens, TenantUse
from worker.attached_adapters import AttachedAdapters, domains_of
from worker.audit import Audits
from worker.audit_samples import Chance, never
from worker.audit_steps import AuditSteps
from worker.block_look import BlockLook
from worker.engine_books import MAX_RETRY_S, Vitals, load_of, queue_s, vitals_of
from worker.engine_config import EngineConfig, check_request, check_room
from worker.engine_pool import make_pool
from worker.exchange import Exchange
from worker.fences import Fences, purged
from worker.outcomes import check_result, finish_of, finished, hopeless, too_long_now
from worker.peers import NoPeers, Peers
from worker.pins import PinTable
from worker.queue_limit import may_wait
from worker.rate import RateMeter
from worker.requests import CacheMode, EngineOutput, EngineRequest, Failed, Finish, Generated, RequestKey, Started
from worker.runner import PreparedAdapter, Runner
from worker.scheduler import Schedule, Scheduler
from worker.sequence import ActiveRequest, Sequence
from worker.step_plan import EMPTY_PLAN, RowFailure, StepResult
from worker.swap import Swap

_log = structlog.get_logger(__name__)


class Engine:
    """One model's continuous batch."""

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        config: EngineConfig,
        hasher: Hasher = xxh3_128,
        draw: Chance = never,
        peers: Peers | None = None,
    ) -> None:
        """`draw` chooses hits for audits; `peers` fetches blocks of other workers, None: there are none."""
        self._runner = runner
        self._clock = clock
        self._config = config
        geometry = runner.info.geometry
        self._num_groups = len(geometry.groups)
        self._block_size = geometry.block_size
        self._pool = make_pool(runner, config, clock, hasher)
        self.reuse = self._pool.reuse
        """How often tenants would hit with more or less room."""
        self.pins = PinTable(self._pool, geometry.block_size, clock)
        """Prefixes that tenants keep from eviction."""
        self._prefill_rate = RateMeter(clock)
        self._swap = Swap(
            self._pool, geometry.block_size, runner.transfers.block_bytes, self._prefill_rate, peers or NoPeers(), clock
        )
        self._scheduler = Scheduler(config, self._pool, geometry.block_size, self.pins, self._swap)
        self.exchange = Exchange(
            self._pool, geometry.block_size, runner.transfers, self._scheduler, self._swap.fetches, self._domains
        )
        """Blocks given to and taken from other workers."""
        self.look = BlockLook(self._pool, self._scheduler, self.pins, self._block_size)  # for the operator
        self._audits = Audits(self._pool, geometry, runner.info.tolerance, config.audit, draw, self._quarantine)
        self._idle = AuditSteps(self._audits, self._scheduler, config.num_step_tokens, self._prefill_rate, self._run)
        self._requests: dict[RequestKey, ActiveRequest] = {}
        self._adapters = AttachedAdapters(runner)
        self._ordinals = itertools.count()
        self._unsent: list[EngineOutput] = []
        """Came about between steps."""
        self._num_refused = 0

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute or say something."""
        return self._scheduler.has_work or bool(self._unsent)

    @property
    def has_idle_work(self) -> bool:
        """Whether `step_idle` would compute something."""
        return self._audits.has_samples and not (self._requests or self.num_loading)

    @property
    def num_held_blocks(self) -> int:
        """Blocks that requests or pins hold: 0 when there are none of both."""
        return self._pool.num_held

    def submit(self, request: EngineRequest) -> None:
        """Queues a request.

        Raises InvalidRequestError where it can never be served, UnavailableError where too many wait already.
        """
        assert request.key not in self._requests, "a key names one request"
        check_request(request, self._runner.info, self._config)
        self._adapters.require(request.adapter)
        try:
            check_room(request, self._block_size, self._runner.num_blocks, self._pool.max_blocks(request.domain))
        except InvalidRequestError:
            self._num_refused += 1
            raise
        tenant, waiting = request.domain.tenant, self._not_started()
        if not may_wait(tenant, waiting, lambda each: self._pool.quotas.of(each).weight, self._config.num_max_waiting):
            raise UnavailableError("too many requests wait at this worker; try again later", queue_s(self.load()))
        now_s = self._clock.monotonic_s()
        is_dropped = request.cache_mode is CacheMode.PURGED
        active = ActiveRequest(request, next(self._ordinals), now_s, is_dropped=is_dropped)
        sequence = Sequence(active, tuple(range(request.num_samples)), request.prompt, self._num_groups)
        active.sequences.append(sequence)
        self._requests[request.key] = active
        self._scheduler.queue(sequence, now_s)

    def cancel(self, key: RequestKey) -> None:
        """Ends a request at once, without further output. Does nothing where it has ended or was never there."""
        request = self._requests.get(key)
        if request is not None:
            self._end(request)
        self._unsent = [output for output in self._unsent if output.key != key]

    def step(self) -> tuple[EngineOutput, ...]:
        """Computes one step and returns what came of it, in order."""
        self.poll()
        schedule = self._scheduler.schedule(self._clock.monotonic_s())
        outputs, self._unsent = self._unsent, []
        outputs += self._give_up(schedule)
        if schedule.plan is EMPTY_PLAN:
            return tuple(outputs)
        outputs += self._note_started(schedule)
        schedule = self._audits.with_compares(schedule)
        result = self._run(schedule)
        if isinstance(result, StemcacheError):
            self._audits.forget()
            self._scheduler.fail_step(schedule)
            return (*outputs, *self._fail_all(schedule, result))
        self._audits.judge(result)
        return (*outputs, *self._commit(schedule, result))

    def step_idle(self) -> None:
        """Computes a short step of what can wait. To be called where there is no other work; poll before."""
        if self.has_idle_work:
            self._idle.step()

    def poll(self) -> None:
        """Takes note of what came from lower tiers or went to disk since the last call."""
        for result in self._runner.transfers.finished():
            self._swap.take(result)

    def tick(self) -> None:
        """Does what is due by time alone: ends pins and times to live. To be called now and then, between steps."""
        self.pins.expire()
        self._pool.expire()
        self._swap.fetches.expire()
        self._scheduler.tick()
        self._let_go_of_adapters()

    @property
    def num_loading(self) -> int:
        """Blocks on their way to the device; requests may wait for them while there is no work."""
        return self._swap.num_running

    def lookup(self, domain: Domain, prompt: PackedTokens) -> CachedTokens:
        """Leading tokens that a request with that prompt would reuse now; does not count as a use of them."""
        return self._pool.cached_tokens(domain, prompt, count(prompt) - 1)

    def load(self) -> WorkerLoad:
        """What there is to do, without the tenants' part in it."""
        load = load_of(self._pool, self._scheduler, self._prefill_rate, self.pins.num_yielded, self._num_refused)
        num_waiting = self._not_started().total()
        return replace(
            load,
            running_requests=len(self._requests) - num_waiting,
            waiting_requests=num_waiting,
            audit=self._audits.counts,
            peers=self.exchange.counts,
        )

    def usage(self) -> tuple[TenantUse, ...]:
        """Who has which blocks, those with most first; takes longer the more tenants there are."""
        waiting = self._not_started()
        return tuple(
            replace(use, pinned_blocks=self.pins.num_pinned(use.tenant), waiting_requests=waiting[use.tenant])
            for use in self._pool.usage()
        )

    def vitals(self) -> Vitals:
        """What its blocks are used for; to be asked now and then."""
        return vitals_of(self._pool, self._scheduler)

    def set_quotas(self, quotas: QuotaTable) -> None:
        """Other quotas and weights of tenants from now on. What can never end under them fails, and nothing else."""
        self._pool.set_quotas(quotas)
        for request in list(self._requests.values()):
            if not self._scheduler.fits(request):
                self._num_refused += 1
                error = too_long_now(self._pool.max_blocks(request.domain), self._block_size)
                self._unsent.append(self._fail(request, error))

    def purge(self, fences: Fences) -> Dropped:
        """Drops the domains that these fences purge; what it had of them.

        Requests that run in them go on with what they hold, and neither find nor store anything any more.
        """
        dropped = self._drop(purged(self._domains(), fences), fences)
        for tenant in (tenant for tenant, fence in fences.items() if fence is None):
            self._pool.close(tenant)
        return dropped

    def attach_adapter(self, adapter: PreparedAdapter) -> None:
        """Takes requests with the adapter from now on."""
        self._adapters.attach(adapter)

    def retire_adapter(self, adapter: AdapterDigest, kv_format: FormatDigest) -> Dropped:
        """Drops what is cached of the adapter, in its KV format, and takes no more requests with it.

        Those that it has taken go on to their end as they began; then its weights go.
        """
        self._adapters.retire(adapter)
        domains = domains_of(kv_format, self._domains())
        dropped = self._drop(domains, {domain.tenant for domain in domains.values()})
        self._let_go_of_adapters()
        return dropped

    def drain_events(self) -> tuple[BlockEvent, ...]:
        """Blocks that came or went since the last call."""
        return self._pool.drain_events()

    def snapshot(self) -> dict[DomainTag, bytes]:
        """Digests of all reusable blocks by domain, parent first."""
        return self._pool.snapshot()

    def check_invariants(self) -> None:
        """Raises AssertionError where requests, queues and pool contradict each other. Only between steps."""
        self._pool.check_invariants()
        self.pins.check_invariants()
        self._scheduler.check_invariants(tuple(self.pins.blocks()))
        queued = {*self._scheduler.waiting, *self._scheduler.running}
        owned = [sequence for request in self._requests.values() for sequence in request.sequences]
        assert len(owned) == len(queued), "a sequence is in no queue, or in two"
        assert queued == set(owned), "a queue holds a sequence of no request"
        assert all(request.sequences for request in self._requests.values()), "a request without sequences lives on"

    def _domains(self) -> list[Domain]:
        """Of whatever it has cached, works on, or has on its way, be it for nobody."""
        requests = (request.domain for request in self._requests.values())
        return [*self._pool.domains(), *requests, *self._swap.domains]

    def _drop(self, domains: Mapping[bytes, Domain], tenants: Collection[TenantId]) -> Dropped:
        """Forgets domains, by root, of these tenants; requests in them neither find nor store anything any more."""
        for request in self._requests.values():
            if request.domain.root in domains:
                request.drop()
        self.pins.end_domains(domains.values())
        self._swap.purge(domains)
        return self._pool.drop(domains.values(), tenants)

    def _quarantine(self, block: Block) -> None:
        """Puts a block and all below it out of use, also for those that hold some of it."""
        gone = self._pool.audit.subtree(block)
        self.pins.end_blocks(gone)
        held = {each.uid for each in gone if each.ref_count}
        for request in self._requests.values() if held else ():
            if any(each.uid in held for sequence in request.sequences for each in sequence.blocks):
                request.drop()
        self._pool.audit.quarantine(block)

    def _let_go_of_adapters(self) -> None:
        self._adapters.let_go(each.request.adapter for each in self._requests.values())

    def _give_up(self, schedule: Schedule) -> list[EngineOutput]:
        requests = list({sequence.owner: None for sequence in schedule.hopeless})
        self._num_refused += len(requests)
        return [self._fail(request, hopeless(request, MAX_RETRY_S)) for request in requests]

    def _note_started(self, schedule: Schedule) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        now_s = self._clock.monotonic_s()
        for sequence in schedule.sequences:
            request = sequence.owner
            if sequence.is_stopped:
                sequence.is_stopped = False
                request.setbacks.resume(now_s)
            if request.scheduled_s is None:
                request.scheduled_s = now_s
                self._audits.note_started(sequence)
                outputs.append(Started(request.key, sequence.cached_by_tier, count(request.request.prompt)))
        return outputs

    def _run(self, schedule: Schedule) -> StepResult | StemcacheError:
        plan = schedule.plan
        started_s = self._clock.monotonic_s()
        try:
            result = self._runner.run(plan)
            check_result(plan, result)
        except Exception as error:  # whatever a runner raises ends the requests of its step, not the worker
            if not plan.rows:
                raise  # no request is to blame: the device does not work any more
            where = "".join(traceback.format_exception(error))  # without local variables: those hold prompts
            _log.error("step_failed", error_type=type(error).__name__, num_rows=len(plan.rows), traceback=where)
            return ComputationError("the model failed in a step that this request was part of")
        step_s = self._clock.monotonic_s() - started_s
        if schedule.sequences:  # short steps of audits say little about requests
            num_prefill = sum(len(row.token_ids) for row in plan.rows if not row.is_decode)
            self._prefill_rate.add(num_prefill, step_s * num_prefill / plan.num_tokens)
        self._scheduler.end_step(schedule, step_s)
        return result

    def _commit(self, schedule: Schedule, result: StepResult) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        now_s = self._clock.monotonic_s()
        for sequence, row, outcome in zip(schedule.sequences, schedule.plan.rows, result.outcomes, strict=True):
            if sequence.owner.key not in self._requests:
                continue  # another sample of the request failed in this step
            if isinstance(outcome, RowFailure):
                outputs.append(self._fail(sequence.owner, ComputationError(outcome.reason)))
                continue
            self._scheduler.commit(sequence, len(row.token_ids))
            if row.draws:
                outputs += self._advance(sequence, outcome, now_s)
        return outputs

    def _advance(self, sequence: Sequence, tokens: tuple[int, ...], now_s: float) -> list[EngineOutput]:
        request = sequence.owner
        if request.first_token_s is None:
            request.first_token_s = now_s
        outputs: list[EngineOutput] = []
        living: list[tuple[int, int]] = []
        finish: Finish | None = None
        num_output = sequence.num_output + 1
        for sample, token in zip(sequence.samples, tokens, strict=True):
            finish = finish_of(request, token, num_output)
            outputs.append(Generated(request.key, sample, (token,), finish))
            if finish is None:
                living.append((sample, token))
        self._branch(sequence, living, finish)
        if not request.sequences:
            del self._requests[request.key]
            outputs.append(finished(request, now_s))
        return outputs

    def _branch(self, trunk: Sequence, living: list[tuple[int, int]], finish: Finish | None) -> None:
        """Lets the trunk go on as the first living sample and forks the others off it; without one it has ended so."""
        request = trunk.owner
        for sample, token in living[1:]:
            fork = self._scheduler.fork(trunk, (sample,))
            fork.append(token)
            request.sequences.append(fork)
        if living:
            sample, token = living[0]
            trunk.samples = (sample,)
            trunk.append(token)
        else:
            request.sequences.remove(trunk)
            trunk.finish = finish
            self._scheduler.drop(trunk)

    def _fail_all(self, schedule: Schedule, error: StemcacheError) -> list[EngineOutput]:
        return [self._fail(owner, error) for owner in dict.fromkeys(each.owner for each in schedule.sequences)]

    def _fail(self, request: ActiveRequest, error: StemcacheError) -> Failed:
        self._end(request)
        return Failed(request.key, error)

    def _end(self, request: ActiveRequest) -> None:
        del self._requests[request.key]
        while request.sequences:
            self._scheduler.drop(request.sequences.pop(0))

    def _not_started(self) -> Counter[TenantId]:
        return Counter(request.domain.tenant for request in self._requests.values() if request.scheduled_s is None)
