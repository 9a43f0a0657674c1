"""Requests of a trace through one router and its workers, in simulated time, with the product's parts.

The router has what a real one has and no more: reports that are as old as the registry makes them, a copy of the index
that is as late as the stream makes it, what it has sent itself, prompts on their way, and heat. Nothing is sent over a
network; tokenising, hashing and routing take no simulated time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cache_store.digest import DIGEST_BYTES, chain
from cache_store.domain import Domain, Epoch, TenantId, derive_domain
from cache_store.index_replica import IndexReplica
from cache_store.registry import RENEW_S, WorkerRecord
from cache_store.replay.trace import Trace, TraceRequest
from services.router.assignments import Assignment, Assignments
from services.router.heat import PrefixHeat
from services.router.peer_hints import find_peer
from services.router.rendezvous import AFFINITY_TOKENS, Affinity
from services.router.routing import RouteRequest, WorkerView
from services.router.speculations import Speculation, Speculations
from tests.bench.cluster.rules import Rule
from tests.bench.cluster.workers import MODEL, Prefill, SimClock, SimWorker, WorkerSize

INDEX_LAG_S = 0.15
"""From the end of a step to a router's copy: the worker's publisher and the router's polls."""
REPORT_LAG_S = RENEW_S / 2
"""From a report to the router's poll of it, on average."""


@dataclass(slots=True)
class _Sent:
    at_s: float
    prompt_tokens: int
    assignment: Assignment
    coming: Speculation


@dataclass(slots=True)
class Outcome:
    """What a run gave."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    prefilled: dict[str, int] = field(default_factory=dict)
    """Tokens by worker."""
    ttft_s: list[float] = field(default_factory=list)

    @property
    def hit_share(self) -> float:
        """Of the prompts' tokens."""
        return self.hit_tokens / self.prompt_tokens

    @property
    def imbalance(self) -> float:
        """Most over mean."""
        return max(self.prefilled.values()) * len(self.prefilled) / sum(self.prefilled.values())


class Cluster:
    """One run."""

    def __init__(self, num_workers: int, size: WorkerSize, rule: Rule, seed: int = 0) -> None:
        self._clock = clock = SimClock()
        self._rule = rule
        self._rng = random.Random(seed)
        self._block_tokens = size.block_tokens
        self._workers = {
            worker.incarnation: worker for worker in (SimWorker(n, size, clock) for n in range(num_workers))
        }
        self._seen: dict[str, WorkerRecord] = {inc: worker.report() for inc, worker in self._workers.items()}
        self._domain = _domain(next(iter(self._seen.values())))
        self._tag = self._domain.tag
        self._assignments = Assignments(clock)
        self._speculations = Speculations(clock)
        self._heat = PrefixHeat(clock)
        self._replica = IndexReplica()
        for incarnation in self._workers:
            load = self._replica.begin_load(self._tag, incarnation)
            assert load is not None
            self._replica.finish_load(load, ())
        self._sent: dict[int, _Sent] = {}
        self._outcome = Outcome(prefilled={worker.incarnation: 0 for worker in self._workers.values()})
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._num_open = 0
        self._start_s = 0.0
        self._arrivals: Iterator[tuple[int, TraceRequest]] = iter(())

    def run(self, trace: Trace) -> Outcome:
        """All requests, until the last first token."""
        self._start_s = trace.requests[0].at_s
        self._arrivals = iter(enumerate(trace.requests))
        self._expect_next()
        self._at(0.0, self._report)
        while self._events and self._num_open:
            self._clock.now_s, _, act = heapq.heappop(self._events)
            act()
        for worker in self._workers.values():
            worker.check_invariants()
        self._speculations.check_invariants()
        return self._outcome

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._at(self._clock.now_s + seconds, act)

    def _expect_next(self) -> None:
        if (coming := next(self._arrivals, None)) is not None:
            self._num_open += 1
            self._at(coming[1].at_s - self._start_s, lambda: self._arrive(*coming))

    def _arrive(self, number: int, request: TraceRequest) -> None:
        self._expect_next()
        digests = b"".join(chain(self._domain, request.blocks, 1))
        matched, num_held = {}, 0
        known = self._replica.counts(self._tag, digests, self._workers)
        for incarnation, num_known in known.items():
            num_here = max(num_known, self._speculations.leading(self._tag, incarnation, digests))
            matched[incarnation] = num_here * self._block_tokens
            num_held = max(num_held, num_here)
        last_held = digests[(num_held - 1) * DIGEST_BYTES : num_held * DIGEST_BYTES]
        heat = self._heat.note(self._tag, last_held) if num_held else 0.0
        tokens = max(request.prompt_tokens, 1 + (request.num_blocks - 1) * self._block_tokens)
        asked = RouteRequest(
            MODEL,
            tokens,
            1,
            1,
            frozenset(),
            affinity=self._affinity(digests),
            prompt_affinity=Affinity(digests[-DIGEST_BYTES:]),
            heat=heat,
        )
        views = self._views()
        choice = self._rule(views, matched, asked, self._rng)
        term = choice.terms[0]
        worker = self._workers[choice.worker.incarnation]
        assignment = self._assignments.add(worker.incarnation, tokens - term.matched_tokens)
        delay_s = term.queue_s + term.prefill_s
        coming = self._speculations.add(self._domain.tenant, self._tag, worker.incarnation, digests, delay_s)
        self._sent[number] = _Sent(self._clock.now_s, request.prompt_tokens, assignment, coming)
        hint = find_peer(choice, views, matched, frozenset())
        worker.submit(number, self._domain, request, hint and self._workers[hint.worker.incarnation])
        self._wake(worker)

    def _affinity(self, digests: bytes) -> Affinity:
        """As the router's, of whole blocks: at least one."""
        num_full = len(digests) // DIGEST_BYTES
        num_blocks = min(max(1, AFFINITY_TOKENS // self._block_tokens), 1 << (num_full.bit_length() - 1))
        return Affinity(digests[(num_blocks - 1) * DIGEST_BYTES : num_blocks * DIGEST_BYTES])

    def _views(self) -> list[WorkerView]:
        views = []
        for incarnation in self._workers:
            record = self._seen[incarnation]
            pending = self._assignments.pending(incarnation, record.load)
            views.append(
                WorkerView(
                    record,
                    suspected=False,
                    pending_prefill_tokens=pending.prefill_tokens,
                    pending_requests=pending.requests,
                    request_s=self._assignments.request_s(incarnation),
                )
            )
        return views

    def _wake(self, worker: SimWorker) -> None:
        if worker.is_busy or not worker.has_work:
            return
        done = worker.prefill()
        worker.is_busy = True
        self._after(done.seconds, lambda: self._end(worker, done))

    def _end(self, worker: SimWorker, done: Prefill) -> None:
        now_s = self._clock.now_s
        sent = self._sent.pop(done.number)
        self._num_open -= 1
        self._outcome.prompt_tokens += sent.prompt_tokens
        self._outcome.hit_tokens += done.hit_tokens
        self._outcome.prefilled[worker.incarnation] += sent.prompt_tokens - done.hit_tokens
        self._outcome.ttft_s.append(now_s - sent.at_s)
        sent.assignment.first_token(now_s)
        sent.assignment.end(now_s)
        self._speculations.settle(sent.coming)
        if done.changes:
            self._after(INDEX_LAG_S, lambda: self._replica.apply(worker.incarnation, done.changes))
        worker.is_busy = False
        self._wake(worker)

    def _report(self) -> None:
        reports = {incarnation: worker.report() for incarnation, worker in self._workers.items()}
        self._after(REPORT_LAG_S, lambda: self._seen.update(reports))
        self._after(RENEW_S, self._report)


def _domain(record: WorkerRecord) -> Domain:
    return derive_domain(bytes(32), TenantId("bench"), Epoch("bench"), "", record.kv_format)
