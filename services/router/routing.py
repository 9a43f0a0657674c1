"""Chooses a worker: a pure function over a snapshot.

Drops workers of another model, excluded, draining or too small ones, then takes the least cost: the seconds until the
first token, and once more RECOMPUTE_WEIGHT x the seconds that a usual worker needs for what is not cached. A strict
tenant's request goes to the first of them in the order of `services/router/rendezvous.py`, whatever the cost. The terms
of every candidate are part of the result. Knows no index, no network and no clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cache_store.domain import FormatDigest
from cache_store.errors import UnavailableError
from cache_store.index import Incarnation
from cache_store.quota import WHOLE_POOL, PoolPart
from cache_store.registry import RENEW_S, WorkerId, WorkerRecord
from services.router.rendezvous import Affinity, in_order
from services.router.room import Extent, fits, too_large

RECOMPUTE_WEIGHT = 5.0
"""What computing again costs others, beside this request: it delays everybody behind, and takes room. Counted at the
mean speed of all candidates, so that a worker that measured itself a fifth quicker does not draw everything."""

ASSUMED_PREFILL_TOKENS_PER_S = 1_000.0
"""For workers that have measured nothing yet, while no other worker has either."""

_SAME_COST = 1e-9


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
    affinity: Affinity | None = None
    """Of a strict tenant's request; None: the least cost decides."""

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
    queue_s: float
    prefill_s: float
    cost: float


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
    rng: random.Random,
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
    mean_rate = _mean_rate(candidates)
    costs = [(_term(v, matched_tokens.get(v.record.incarnation, 0), request, mean_rate), v) for v in candidates]
    return _cheapest(costs, rng) if request.affinity is None else _first(costs, request.affinity)


def _cheapest(costs: list[tuple[RouteTerm, WorkerView]], rng: random.Random) -> RouteChoice:
    costs.sort(key=lambda pair: pair[0].cost)
    least = costs[0][0].cost
    best = [pair for pair in costs if math.isclose(pair[0].cost, least, rel_tol=_SAME_COST, abs_tol=_SAME_COST)]
    chosen = rng.choice(best)
    terms = (chosen[0], *(term for term, view in costs if view is not chosen[1]))
    return RouteChoice(chosen[1].record, terms, RouteRule.COST)


def _first(costs: list[tuple[RouteTerm, WorkerView]], affinity: Affinity) -> RouteChoice:
    by_worker = {term.worker_id: (term, view) for term, view in costs}
    ordered = [by_worker[worker_id] for worker_id in in_order(affinity, by_worker)]
    return RouteChoice(ordered[0][1].record, tuple(term for term, _ in ordered), RouteRule.AFFINITY)


def _term(view: WorkerView, matched: int, request: RouteRequest, mean_rate: float) -> RouteTerm:
    load = view.record.load
    rate = load.prefill_tokens_per_s or mean_rate
    matched = min(matched, request.prompt_tokens - 1)
    queue_s = (load.queued_prefill_tokens + view.pending_prefill_tokens) / rate + _wait_for_place_s(view, request)
    uncached = request.prompt_tokens - matched
    prefill_s = uncached / rate
    cost = queue_s + prefill_s + RECOMPUTE_WEIGHT * uncached / mean_rate
    return RouteTerm(view.record.worker_id, view.record.kv_format, matched, queue_s, prefill_s, cost)


def _wait_for_place_s(view: WorkerView, request: RouteRequest) -> float:
    """Seconds until the running batch has room: with all places taken, one gets free every request_s / places."""
    places = max(1, view.record.max_num_sequences)
    load = view.record.load
    present = load.running_requests + load.waiting_requests + view.pending_requests + request.num_samples
    return max(0, present - places) * view.request_s / places


def _mean_rate(candidates: Iterable[WorkerView]) -> float:
    measured = [rate for view in candidates if (rate := view.record.load.prefill_tokens_per_s) > 0]
    return sum(measured) / len(measured) if measured else ASSUMED_PREFILL_TOKENS_PER_S
