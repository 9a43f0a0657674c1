"""Which other worker has more of a prompt than the one that was chosen: it may fetch the blocks from there. Pure.

A hint: the worker fetches only where that is faster than computing, and compares tokens. What is on its way to another
worker counts like what it has, so that a prompt which load sends to a second worker is not computed twice. Requests of
strict tenants get none: what they find follows from their own requests alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cache_store.index import Incarnation
from cache_store.registry import WorkerRecord
from services.router.routing import RouteChoice, RouteRule, WorkerView

MIN_BLOCKS = 2
"""More than the chosen worker has: for less nobody is asked."""


@dataclass(frozen=True, slots=True)
class PeerHint:
    """Whom to ask, and for how much."""

    worker: WorkerRecord
    num_blocks: int
    """Leading ones of the prompt."""


def others_have_more(choice: RouteChoice, matched_tokens: Mapping[Incarnation, int]) -> bool:
    """Whether it is worth looking for one: mostly the chosen worker has most."""
    return max(matched_tokens.values(), default=0) >= _least(choice, matched_tokens)


def find_peer(
    choice: RouteChoice,
    views: Sequence[WorkerView],
    matched_tokens: Mapping[Incarnation, int],
    lost: frozenset[Incarnation],
) -> PeerHint | None:
    """The worker that has most, of those that answer; of several with as much one that stays, and is least busy."""
    if choice.rule is RouteRule.AFFINITY:
        return None
    chosen = choice.worker
    least = _least(choice, matched_tokens)
    others = [
        view
        for view in views
        if view.record.kv_format == chosen.kv_format
        and view.record.incarnation != chosen.incarnation
        and view.record.incarnation not in lost
        and not view.suspected
        and matched_tokens.get(view.record.incarnation, 0) >= least
    ]
    if not others:
        return None

    def order(view: WorkerView) -> tuple[int, bool, int]:
        record = view.record
        return -matched_tokens[record.incarnation], record.draining, record.load.queued_prefill_tokens

    best = min(others, key=order).record
    return PeerHint(best, matched_tokens[best.incarnation] // best.block_size)


def _least(choice: RouteChoice, matched_tokens: Mapping[Incarnation, int]) -> int:
    """Tokens that another worker has to have."""
    return matched_tokens.get(choice.worker.incarnation, 0) + MIN_BLOCKS * choice.worker.block_size
