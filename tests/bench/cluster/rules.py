"""The rules that are compared: ours as the product has it, and what one could do instead. All see the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cache_store.index import Incarnation
from services.router.routing import TUNING, RouteChoice, RouteRequest, RouteTerm, RouteTuning, WorkerView, choose

Rule = Callable[[Sequence[WorkerView], Mapping[Incarnation, int], RouteRequest, random.Random], RouteChoice]

OURS = "ours"
GREEDY = "greedy TTFT"


@dataclass(frozen=True, slots=True)
class Ours:
    """The product's rule, as it is or with other numbers."""

    tuning: RouteTuning = TUNING
    is_hot_known: bool = True
    """False: no prefix counts as hot."""

    def __call__(
        self,
        views: Sequence[WorkerView],
        matched: Mapping[Incarnation, int],
        request: RouteRequest,
        rng: random.Random,
    ) -> RouteChoice:
        asked = request if self.is_hot_known else replace(request, heat=0.0)
        return choose(views, matched, asked, self.tuning)


def _by(
    key: Callable[[RouteTerm], float],
    views: Sequence[WorkerView],
    matched: Mapping[Incarnation, int],
    request: RouteRequest,
    rng: random.Random,
) -> RouteChoice:
    """The worker whose term has the least `key`; ties are random."""
    choice = choose(views, matched, request)
    least = min(map(key, choice.terms))
    chosen = rng.choice([term for term in choice.terms if key(term) == least])
    record = next(view.record for view in views if view.record.worker_id == chosen.worker_id)
    return RouteChoice(record, (chosen,), choice.rule)


RULES: Mapping[str, Rule] = {
    "random": partial(_by, lambda _: 0.0),
    "least loaded": partial(_by, lambda term: term.queue_s),
    "longest prefix": partial(_by, lambda term: -term.matched_tokens),
    GREEDY: Ours(RouteTuning(recompute_weight=0.0, min_match_tokens=0)),
    OURS: Ours(),
}
