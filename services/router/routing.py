"""Chooses a worker: a pure function over a snapshot.

Drops workers of another model, excluded, draining or too small ones, then takes the least of
`queue seconds + ROUTE_WEIGHT x seconds to compute what is not cached`. The terms of every candidate are part of the
result. Knows no index, no network and no clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.index import Incarnation
from cache_store.registry import RENEW_S, WorkerId, WorkerRecord

ROUTE_WEIGHT = 6.0
"""How much more a second of prefill costs than a second of queue: computing again also delays everybody behind."""

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


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a choice depends on, beside the workers."""

    model: str
    prompt_tokens: int
    max_tokens: int
    num_samples: int
    excluded: frozenset[Incarnation]
    """Already tried."""


@dataclass(frozen=True, slots=True)
class RouteTerm:
    """Why a candidate cost what it cost."""

    worker_id: WorkerId
    matched_tokens: int
    queue_s: float
    prefill_s: float
    cost: float


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """The worker chosen, and the terms of all candidates, best first."""

    worker: WorkerRecord
    terms: tuple[RouteTerm, ...]


def answer_room(record: WorkerRecord, prompt_tokens: int, num_samples: int) -> int:
    """Most tokens that each sample of a prompt may have on a worker; 0 or less where not even the prompt fits.

    The samples run at once and share the prompt's full blocks; a sample's last token is drawn and never stored.
    """
    if num_samples > record.max_num_sequences:
        return 0
    shared_blocks, in_partial_block = divmod(prompt_tokens, record.block_size)
    own_blocks = (record.num_blocks - shared_blocks) // num_samples
    return min(record.max_model_len - prompt_tokens, own_blocks * record.block_size - in_partial_block + 1)


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
    fitting = [view for view in of_model if _fits(view.record, request)]
    if not fitting:
        raise _too_large(of_model, request)
    usable = [v for v in fitting if not v.record.draining and v.record.incarnation not in request.excluded]
    candidates = [view for view in usable if not view.suspected] or usable
    if not candidates:
        raise UnavailableError(f"no worker of model {request.model!r} can take the request now", RENEW_S)
    return _cheapest(candidates, matched_tokens, request, rng)


def _cheapest(
    candidates: Sequence[WorkerView],
    matched_tokens: Mapping[Incarnation, int],
    request: RouteRequest,
    rng: random.Random,
) -> RouteChoice:
    assumed = _assumed_rate(candidates)
    costs = [(_term(v, matched_tokens.get(v.record.incarnation, 0), request, assumed), v) for v in candidates]
    costs.sort(key=lambda pair: pair[0].cost)
    least = costs[0][0].cost
    best = [pair for pair in costs if math.isclose(pair[0].cost, least, rel_tol=_SAME_COST, abs_tol=_SAME_COST)]
    chosen = rng.choice(best)
    terms = (chosen[0], *(term for term, view in costs if view is not chosen[1]))
    return RouteChoice(chosen[1].record, terms)


def _term(view: WorkerView, matched: int, request: RouteRequest, assumed_rate: float) -> RouteTerm:
    load = view.record.load
    rate = load.prefill_tokens_per_s or assumed_rate
    matched = min(matched, request.prompt_tokens - 1)
    queue_s = (load.queued_prefill_tokens + view.pending_prefill_tokens) / rate + _wait_for_place_s(view, request)
    prefill_s = (request.prompt_tokens - matched) / rate
    return RouteTerm(view.record.worker_id, matched, queue_s, prefill_s, queue_s + ROUTE_WEIGHT * prefill_s)


def _wait_for_place_s(view: WorkerView, request: RouteRequest) -> float:
    """Seconds until the running batch has room: with all places taken, one gets free every request_s / places."""
    places = max(1, view.record.max_num_sequences)
    load = view.record.load
    present = load.running_requests + load.waiting_requests + view.pending_requests + request.num_samples
    return max(0, present - places) * view.request_s / places


def _assumed_rate(candidates: Iterable[WorkerView]) -> float:
    measured = [rate for view in candidates if (rate := view.record.load.prefill_tokens_per_s) > 0]
    return sum(measured) / len(measured) if measured else ASSUMED_PREFILL_TOKENS_PER_S


def _fits(record: WorkerRecord, request: RouteRequest) -> bool:
    return answer_room(record, request.prompt_tokens, request.num_samples) >= request.max_tokens


def _too_large(workers: Sequence[WorkerView], request: RouteRequest) -> InvalidRequestError:
    samples, prompt = request.num_samples, request.prompt_tokens
    places = max(view.record.max_num_sequences for view in workers)
    if samples > places:
        return InvalidRequestError("sampling_params.n", f"n is {samples}; at most {places} samples run at once")
    model_len = max(view.record.max_model_len for view in workers)
    pool = max(view.record.num_blocks * view.record.block_size for view in workers)
    limits = f"the model reads {model_len} tokens of prompt and answer together and a worker's cache holds {pool}"
    room = max(answer_room(view.record, prompt, samples) for view in workers)
    if room >= 1:
        wanted = f"{samples} x {request.max_tokens} tokens after a prompt of {prompt} do not fit"
        return InvalidRequestError(
            "sampling_params.max_tokens", f"{wanted}: {limits}; at most {room} per sample would fit"
        )
    longest = max(longest_prompt(view.record, samples) for view in workers)
    return InvalidRequestError(
        "prompt",
        f"the prompt has {prompt} tokens: {limits}; with n = {samples} a prompt of up to {longest} tokens would fit",
    )


def longest_prompt(record: WorkerRecord, num_samples: int) -> int:
    """The length up to which every prompt leaves room for at least one token per sample."""
    by_pool = (record.num_blocks - num_samples + 1) * record.block_size
    return max(0, min(record.max_model_len - 1, by_pool))
