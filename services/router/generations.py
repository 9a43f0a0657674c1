"""Generations from admission to end: joins validation, request table, planning and dispatch, and keeps the records.

Owned by one event loop. Knows no gRPC; the messages of `stemcache.v1` only as what is validated and fingerprinted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog
from stemcache.v1 import inference_pb2 as pb

from cache_store.clock import Clock
from cache_store.errors import LimitExceededError, StemcacheError, UnavailableError
from cache_store.telemetry.trace_context import Metadata, TraceContext, from_metadata
from cache_store.tokens import count
from services.router.attempt import Job
from services.router.bills import Bills
from services.router.cluster_limits import ClusterLimits, TokenNeed
from services.router.dispatch import Dispatcher
from services.router.generation import Finished, GenerationEvent, GenerationSpec, Piece, Started, Take, Timings
from services.router.planning import Plan, Planner
from services.router.records import Arrived, Ended, RequestRecord, RequestRecords
from services.router.request_table import Attached, Call, RequestTable
from services.router.traffic import Traffic
from services.router.validation import generation_spec
from services.router.watch import EndedRequest, NobodyWatches, RequestTrace, RequestTracer, RequestWatch
from services.tenants.model import NO_LIMITS, Tenant

RETRY_SLACK_S = 60.0
"""A generation that a retry may attach to outlives the deadline of its first caller by so much at most."""

DRAIN_RETRY_AFTER_S = 1.0


@dataclass(slots=True)
class PlanCounts:
    """Requests since the router's start."""

    num_planned: int = 0
    num_degraded: int = 0
    """Of them those whose route was degraded."""

    def note(self, plan: Plan) -> None:
        """One more."""
        self.num_planned += 1
        self.num_degraded += plan.degraded


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A call, when it came and how long its caller waits."""

    receive_unix_s: float
    receive_s: float
    """By the monotonic clock."""
    timeout_s: float | None
    """None: no deadline."""
    parent: TraceContext | None = None
    """The caller's trace, where requests are traced."""


class Generations:
    """All generations of one router."""

    def __init__(
        self,
        planner: Planner,
        dispatcher: Dispatcher,
        table: RequestTable,
        records: RequestRecords,
        limits: ClusterLimits,
        status_name: Callable[[BaseException], str],
        max_request_s: float,
        clock: Clock,
    ) -> None:
        """`status_name`: of the status that an error ends a call with."""
        self.watch: RequestWatch = NobodyWatches()
        """Told of requests that ended."""
        self.tracer: RequestTracer | None = None
        """Chooses requests to trace; None: none are."""
        self._planner = planner
        self._dispatcher = dispatcher
        self._table = table
        self._records = records
        self._limits = limits
        self._status_name = status_name
        self._max_request_s = max_request_s
        self.clock = clock
        self._is_draining = False
        self.counts = PlanCounts()
        """Only to be looked at."""
        self.traffic = Traffic()
        """Likewise."""
        self.bills = Bills()
        """What tenants' requests used."""

    def arrival(self, timeout_s: float | None, metadata: Metadata = ()) -> Arrival:
        """A call that comes now; `metadata` may name the caller's trace."""
        parent = None if self.tracer is None else from_metadata(metadata)
        return Arrival(self.clock.unix_s(), self.clock.monotonic_s(), timeout_s, parent)

    @contextmanager
    def open(self, tenant: Tenant, request: pb.GenerateRequest, arrival: Arrival) -> Iterator[Attached]:
        """The generation that `request` means: a new one, or the one that it is a retry of.

        Raises InvalidRequestError, AlreadyExistsError, LimitExceededError, UnavailableError.
        """
        is_attached = False
        try:
            spec = generation_spec(request)
            if (model := self._planner.models.named(tenant.id, spec.model).name) != spec.model:
                spec = replace(spec, model=model)
            if self._is_draining:
                raise UnavailableError("this router is draining; ask another one", DRAIN_RETRY_AFTER_S)
            call = Call(tenant.id, spec.request_id, _fingerprint(request) if spec.request_id else b"")

            def start(request_id: str, take: Take) -> Awaitable[None]:
                return self._run(tenant, request_id, spec, arrival, take)

            with self._table.attach(call, start) as attached:
                is_attached = True
                yield attached
        except StemcacheError as error:
            if not is_attached:
                self.bills.of(tenant.id).end(self._status_name(error), None)
            raise

    def cancel(self, tenant: Tenant, request_id: str) -> bool:
        """Ends a running generation of the tenant. False where it has none of that id."""
        return self._table.cancel(tenant.id, request_id)

    async def drain(self, deadline_s: float) -> None:
        """Takes nothing new and waits for what runs, at most `deadline_s`."""
        self._is_draining = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._table.idle()
        except TimeoutError:
            return

    async def _run(self, tenant: Tenant, request_id: str, spec: GenerationSpec, arrival: Arrival, take: Take) -> None:
        ending: _Ending | None = None
        try:
            async with self._limits.place(tenant):
                record = self._records.open(tenant.name, request_id)
                trace = None if self.tracer is None else self.tracer.begin(arrival.parent, spec, arrival.receive_unix_s)
                ending = _Ending(record, tenant, arrival, self, trace)
                record.add(Arrived(arrival.receive_unix_s, spec.model))
                job = await self._job(tenant, request_id, spec, arrival, record)
                if trace is not None:
                    trace.planned()
                    job = replace(job, trace_header=trace.header)
                async with self._limits.tokens(tenant, _need(job)) as meter:

                    def note(event: GenerationEvent) -> None:
                        meter.note(event)
                        ending.note(event)
                        take(event)

                    await self._dispatcher.run(self._renewed(job, tenant), note)
        except BaseException as error:
            if ending is not None:
                ending.end(self._status_name(error), None)
            else:  # it got no place
                self.bills.of(tenant.id).end(self._status_name(error), None)
                if isinstance(error, LimitExceededError):
                    self.watch.refused(tenant.id, tenant.name)
            raise

    async def _job(
        self, tenant: Tenant, request_id: str, spec: GenerationSpec, arrival: Arrival, record: RequestRecord
    ) -> Job:
        plan = await self._planner.plan(tenant, spec)
        if self._keeps_limits_alone(tenant):
            plan = replace(plan, degraded=True)
        self.counts.note(plan)
        record.add(plan.outlooks)
        return Job(
            request_id=request_id,
            spec=spec,
            plan=plan,
            record=record,
            receive_unix_s=arrival.receive_unix_s,
            receive_s=arrival.receive_s,
            deadline_s=self._deadline_s(spec, arrival),
            num_revoked_keys=lambda: self._planner.latest(tenant).num_revoked_keys,
        )

    def _renewed(self, job: Job, tenant: Tenant) -> Job:
        plan = self._planner.renewed(job.plan, tenant, job.spec)
        return job if plan is job.plan else replace(job, plan=plan)

    def _keeps_limits_alone(self, tenant: Tenant) -> bool:
        return tenant.limits != NO_LIMITS and self._limits.is_degraded

    def _deadline_s(self, spec: GenerationSpec, arrival: Arrival) -> float:
        latest_s = arrival.receive_s + self._max_request_s
        if arrival.timeout_s is None:
            return latest_s
        slack_s = RETRY_SLACK_S if spec.request_id else 0.0
        return min(latest_s, arrival.receive_s + arrival.timeout_s + slack_s)


class _Ending:
    """Writes what a request used on its tenant's bill, its end into its record, and tells who watches, once."""

    def __init__(
        self,
        record: RequestRecord,
        tenant: Tenant,
        arrival: Arrival,
        owner: Generations,
        trace: RequestTrace | None,
    ) -> None:
        self._record = record
        self._tenant = tenant
        self._arrival = arrival
        self._owner = owner
        self._trace = trace
        self._started: Started | None = None
        self._completion_tokens = 0
        self._has_ended = False

    def note(self, event: GenerationEvent) -> None:
        """The record has the end before the caller does."""
        if isinstance(event, Piece):
            num_tokens = count(event.tokens)
            self._completion_tokens += num_tokens
            self._owner.bills.of(self._tenant.id).generated_tokens += num_tokens
        elif isinstance(event, Finished):
            self.end("OK", event.timings)
        else:
            self._started = event
            self._owner.traffic.note(self._record.tenant_name, event)
            self._owner.bills.of(self._tenant.id).begin(event)

    def end(self, status: str, timings: Timings | None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._record.add(Ended(status, self._completion_tokens, timings))
            self._owner.bills.of(self._tenant.id).end(status, timings)
            _log.info(
                "request.ended",
                tenant=self._record.tenant_name,
                request_id=self._record.request_id,
                status=status,
                completion_tokens=self._completion_tokens,
            )
            ended = EndedRequest(
                tenant=self._tenant.id,
                record=self._record,
                status=status,
                receive_unix_s=self._arrival.receive_unix_s,
                receive_s=self._arrival.receive_s,
                end_s=self._owner.clock.monotonic_s(),
                started=self._started,
                timings=timings,
                completion_tokens=self._completion_tokens,
            )
            self._owner.watch.ended(ended)
            if self._trace is not None:
                self._trace.end(ended)


def _need(job: Job) -> TokenNeed:
    """Where most of its prompt is, there it will go, mostly; the worker's report corrects it."""
    prompt_tokens = count(job.plan.prompt)
    cached_tokens = min(max(job.plan.matched_tokens.values(), default=0), prompt_tokens - 1)
    return TokenNeed(prompt_tokens - cached_tokens, job.plan.max_tokens * job.spec.sampling.n)


def _fingerprint(request: pb.GenerateRequest) -> bytes:
    return hashlib.blake2b(request.SerializeToString(deterministic=True), digest_size=16).digest()
