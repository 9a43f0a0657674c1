"""Chooses a worker: a pure function over a snapshot.

Drops workers of another model, excluded, draining or too small ones, then takes the least cost: the seconds until the
first token, and once more RECOMPUTE_WEIGHT x the seconds that a usual worker needs for what is not cached. Three things
are added to that:

* Minimum match: cached tokens that are few count as none, so that a common first block binds nobody to a busy worker.
* Ties: of the workers that cost the same two are drawn by what the request asks, so that routers that see the same send
  equal prompts to the same worker and others elsewhere; where nobody has anything of it, by its beginning, so that what
  begins alike comes together. The one with fewer requests is taken, or else the one that computed fewer tokens lately:
  its cache is under less pressure.
* Replication: what others will reuse is not computed for this request alone. The more requests have lately begun with
  what the best holder has, for each worker that has it, the less counts the computing of a copy. Then a queue at all
  holders soon makes another one; without a queue, or once there are enough of them, there is none.

A strict tenant's request goes to the first of the candidates in the order of `services/router/rendezvous.py`, whatever
the cost. The terms of every candidate are part of the result. Knows no index, no network and no clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cache_store.domain import FormatDigest
from cache_store.errors import UnavailableError
from cache_store.index import Incarnation
from cache_store.quota import WHOLE_POOL, PoolPart
from cache_store.registry import RENEW_S, WorkerId, WorkerRecord
from services.router.rendezvous import NO_AFFINITY, Affinity, in_order, weight
from services.router.room import Extent, fits, too_large

RECOMPUTE_WEIGHT = 16.0
"""What computing again costs others, beside this request: it delays everybody behind, and takes room. Counted at the
mean speed of all candidates, so that a worker that measured itself a fifth quicker does not draw everything.

Of the hits of one pooled cache on the public traces `tests/bench/cluster` kept with 5, 8 and 16: chat on 4 workers
95.3, 96.4 and 98.4 %; with 8 and 16: agents on 4 workers 99.3 and 99.9 %, on 8 workers 99.5 and 99.8 %. With 16 and 24:
chat on 8 workers 97.8 and 98.3 %, but the imbalance of agents on 8 workers 1.10 and 1.15. And the traces are run
without decoding, where a worker whose batch is full would be waited for that much longer."""

ASSUMED_PREFILL_TOKENS_PER_S = 1_000.0
"""For workers that have measured nothing yet, while no other worker has either."""

MIN_MATCH_TOKENS = 256
"""Fewer cached tokens count as none, unless they are MIN_MATCH_SHARE of the prompt."""

MIN_MATCH_SHARE = 0.25

TIE_SHARE = 0.01
"""Seconds until the first token that differ by less are the same: the rates in them are not known better."""

_TIE_S = 1e-9


@dataclass(frozen=True, slots=True)
class RouteTuning:
    """The numbers of the policy."""

    recompute_weight: float = RECOMPUTE_WEIGHT
    min_match_tokens: int = MIN_MATCH_TOKENS
    min_match_share: float = MIN_MATCH_SHARE

    def minimum_match(self, prompt_tokens: int) -> float:
        """Cached tokens of a prompt below which they count as none."""
        return min(self.min_match_tokens, self.min_match_share * prompt_tokens)


TUNING = RouteTuning()


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as this router sees it: its own report, and what the report cannot contain yet."""

    record: WorkerRecord
    suspected: bool
    """It did not answer lately; taken only where nobody else is left."""
    pending_prefill_tokens: int
    """Sent by this router and not in the report."""
    pending_requests: int
    """Sent by this router and not in the report."""
    request_s: float
    """Usual seconds of a request from its first step to its end; 0 before the first."""


class RouteRule(StrEnum):
    """What decided."""

    COST = "cost"
    """The least cost."""
    TIE = "tie"
    """Several cost the same: the one with fewer requests of two that were drawn."""
    REPLICATION = "replication"
    """The least cost, because many requests will use the copy that is made there."""
    AFFINITY = "affinity"
    """The order of a strict tenant's request; the costs are only told."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a choice depends on, beside the workers."""

    model: str
    prompt_tokens: int
    max_tokens: int
    num_samples: int
    excluded: frozenset[Incarnation]
    """Already tried."""
    part: PoolPart = WHOLE_POOL
    """What its tenant may have of each worker's pool."""
    affinity: Affinity = NO_AFFINITY
    """What it has in common with those that share its prefix."""
    prompt_affinity: Affinity = NO_AFFINITY
    """What it has in common with those that have the same prompt."""
    is_strict: bool = False
    """Of a strict tenant: the affinity decides, instead of the least cost."""
    heat: float = 0.0
    """Requests that lately began with what the best holder has of this one."""

    @property
    def extent(self) -> Extent:
        """How much it needs."""
        return Extent(self.prompt_tokens, self.max_tokens, self.num_samples)


@dataclass(frozen=True, slots=True)
class RouteTerm:
    """Why a candidate cost what it cost."""

    worker_id: WorkerId
    kv_format: FormatDigest
    matched_tokens: int
    """That the index promises there."""
    counted_tokens: int
    """Of them, those that the cost counts: none where they are few."""
    queue_s: float
    prefill_s: float
    recompute_s: float
    """What computing again costs others."""

    @property
    def first_token_s(self) -> float:
        """Seconds until the first token."""
        return self.queue_s + self.prefill_s

    @property
    def cost(self) -> float:
        """Seconds; the least is best."""
        return self.first_token_s + self.recompute_s


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """The worker chosen, and the terms of all candidates, best first by the rule."""

    worker: WorkerRecord
    terms: tuple[RouteTerm, ...]
    rule: RouteRule


def choose(
    workers: Sequence[WorkerView],
    matched_tokens: Mapping[Incarnation, int],
    request: RouteRequest,
    tuning: RouteTuning = TUNING,
) -> RouteChoice:
    """The best worker for `request`.

    `matched_tokens`: prompt tokens that the index promises, absent is 0. Raises InvalidRequestError where no worker of
    the model could ever hold the request, UnavailableError where none can take it now.
    """
    of_model = [view for view in workers if view.record.model == request.model]
    if not of_model:
        raise UnavailableError(f"no worker serves model {request.model!r} now", RENEW_S)
    fitting = [view for view in of_model if fits(view.record, request.part, request.extent)]
    if not fitting:
        raise too_large([view.record for view in of_model], request.part, request.extent)
    usable = [v for v in fitting if not v.record.draining and v.record.incarnation not in request.excluded]
    candidates = [view for view in usable if not view.suspected] or usable
    if not candidates:
        raise UnavailableError(f"no worker of model {request.model!r} can take the request now", RENEW_S)
    costs = _Costs(candidates, matched_tokens, request, tuning)
    return costs.in_order_of_affinity() if request.is_strict else costs.cheapest()


@dataclass(frozen=True, slots=True)
class _Candidate:
    view: WorkerView
    term: RouteTerm
    alone_s: float
    """Its cost if nobody else used what it computes."""

    @property
    def num_requests(self) -> int:
        """That are there now."""
        load = self.view.record.load
        return load.running_requests + load.waiting_requests + self.view.pending_requests

    def busyness(self) -> tuple[int, int]:
        """Requests, and of as many the tokens computed lately: a cache that takes in less keeps for longer."""
        return (self.num_requests, self.view.record.load.recent_prefill_tokens)


class _Costs:
    """All candidates of one choice."""

    def __init__(
        self,
        candidates: Sequence[WorkerView],
        matched_tokens: Mapping[Incarnation, int],
        request: RouteRequest,
        tuning: RouteTuning,
    ) -> None:
        self._request = request
        self._weight = tuning.recompute_weight
        self._mean_rate = _mean_rate(candidates)
        matched = [
            min(matched_tokens.get(view.record.incarnation, 0), request.prompt_tokens - 1) for view in candidates
        ]
        minimum = tuning.minimum_match(request.prompt_tokens)
        counted = [tokens if tokens >= minimum else 0 for tokens in matched]
        self._most = max(counted)
        self._sharers = max(1.0, request.heat / counted.count(self._most))
        self._candidates = [self._candidate(*each) for each in zip(candidates, matched, counted, strict=True)]

    def cheapest(self) -> RouteChoice:
        """By cost."""
        ordered = sorted(self._candidates, key=lambda each: each.term.cost)
        best = ordered[0]
        tied = [each for each in ordered if _is_same(each.term, best.term)]
        chosen = min(self._drawn(tied), key=_Candidate.busyness) if len(tied) > 1 else best
        terms = (chosen.term, *(each.term for each in ordered if each is not chosen))
        return RouteChoice(chosen.view.record, terms, self._rule(chosen, len(tied)))

    def _drawn(self, tied: list[_Candidate]) -> list[_Candidate]:
        affinity = self._request.prompt_affinity if self._most else self._request.affinity
        return heapq.nlargest(2, tied, key=lambda each: weight(affinity, each.term.worker_id))

    def in_order_of_affinity(self) -> RouteChoice:
        """Of a strict tenant's request."""
        by_worker = {each.term.worker_id: each for each in self._candidates}
        ordered = [by_worker[worker_id] for worker_id in in_order(self._request.affinity, by_worker)]
        return RouteChoice(ordered[0].view.record, tuple(each.term for each in ordered), RouteRule.AFFINITY)

    def _rule(self, chosen: _Candidate, num_tied: int) -> RouteRule:
        if chosen.term.counted_tokens < self._most and chosen.alone_s > min(each.alone_s for each in self._candidates):
            return RouteRule.REPLICATION
        return RouteRule.COST if num_tied == 1 else RouteRule.TIE

    def _candidate(self, view: WorkerView, matched: int, counted: int) -> _Candidate:
        load, request = view.record.load, self._request
        rate = load.prefill_tokens_per_s or self._mean_rate
        queued = load.queued_prefill_tokens + view.pending_prefill_tokens
        queue_s = queued / rate + _wait_for_place_s(view, request)
        new = request.prompt_tokens - self._most
        copied = self._most - counted
        prefill_s = (new + copied) / rate
        weight = self._weight / self._mean_rate
        recompute_s = weight * (new + copied / self._sharers)
        term = RouteTerm(
            view.record.worker_id, view.record.kv_format, matched, counted, queue_s, prefill_s, recompute_s
        )
        return _Candidate(view, term, queue_s + prefill_s + weight * (new + copied))


def _is_same(a: RouteTerm, b: RouteTerm) -> bool:
    is_equal = math.isclose(a.first_token_s, b.first_token_s, rel_tol=TIE_SHARE, abs_tol=_TIE_S)
    return is_equal and a.counted_tokens == b.counted_tokens


def _wait_for_place_s(view: WorkerView, request: RouteRequest) -> float:
    """Seconds until the running batch has room: with all places taken, one gets free every request_s / places."""
    places = max(1, view.record.max_num_sequences)
    load = view.record.load
    present = load.running_requests + load.waiting_requests + view.pending_requests + request.num_samples
    return max(0, present - places) * view.request_s / places


def _mean_rate(candidates: Iterable[WorkerView]) -> float:
    measured = [rate for view in candidates if (rate := view.record.load.prefill_tokens_per_s) > 0]
    return sum(measured) / len(measured) if measured else ASSUMED_PREFILL_TOKENS_PER_S
