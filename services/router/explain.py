"""Says in words why a request went where it went, and why it reused what it did. Pure, out of its record.

For the operator only: the sentences tell the load of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from services.router.generation import CacheMode
from services.router.outlook import Outlook, Outlooks
from services.router.records import Ended, FirstToken, RequestRecord, Routed
from services.router.routing import RouteRule, RouteTerm


class Miss(StrEnum):
    """Why not more of a prompt was reused."""

    UNKNOWN = "unknown"
    """It is not over yet, or failed before a worker took it."""
    NONE = "none"
    """Everything that can be was reused."""
    BYPASSED = "bypassed"
    """The request asked for no reuse."""
    STALE_CONTROL_DATA = "stale_control_data"
    """The router's control data was too old for reuse."""
    GONE = "gone"
    """The index promised more than the worker had when the request came."""
    LOAD = "load"
    """Another worker had more of it, and too much to do."""
    AFFINITY = "affinity"
    """Another worker had more of it, but a strict tenant's requests go by their own order."""
    SHORT_MATCH = "short_match"
    """Another worker had more of it, but too little to be worth the way."""
    REPLICATED = "replicated"
    """Another worker had more of it; many requests want that, so that a copy was made."""
    OTHER_FORMAT = "other_format"
    """Workers of another KV format had more of it."""
    EVICTED = "evicted"
    """The first block that was missing had been evicted."""
    PURGED = "purged"
    """The partition was purged, and nothing that begins so has been stored since."""
    DIFFERS = "differs"
    """Nothing that goes on so was stored: the first missing block is new."""
    NEVER_STORED = "never_stored"
    """Nothing that begins so was stored."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of one request."""

    worker_id: str
    """That it was sent to last; empty before."""
    route: str
    """Why there."""
    miss: Miss
    reuse: str
    """What was reused, and why not more."""
    first_missing_token: int
    """Position of the first prompt token that had to be computed."""


def explain(record: RequestRecord) -> Explanation:
    """What the record of a request says so far."""
    looked = next((entry for entry in record.entries if isinstance(entry, Outlooks)), None)
    routed = [entry for entry in record.entries if isinstance(entry, Routed)]
    first = next((entry for entry in record.entries if isinstance(entry, FirstToken)), None)
    if not routed:
        ended = next((entry for entry in record.entries if isinstance(entry, Ended)), None)
        why = f"it ended with {ended.status} before a worker was chosen" if ended else "no worker was chosen yet"
        return Explanation("", why, Miss.UNKNOWN, "nothing was computed for it", 0)
    last = routed[-1]
    route = _route(last, len(routed))
    if first is None or looked is None:
        return Explanation(last.terms[0].worker_id, route, Miss.UNKNOWN, "no token of it has come yet", 0)
    began = next((each for each in routed if each.terms[0].worker_id == first.worker_id), last)
    cached = first.cached.total
    miss, why = _miss(looked, began, cached)
    reuse = f"{cached:,} of {began.prompt_tokens:,} prompt tokens were reused: {why}"
    return Explanation(last.terms[0].worker_id, route, miss, reuse, cached)


def _route(routed: Routed, num_tried: int) -> str:
    best = routed.terms[0]
    again = "" if num_tried == 1 else f" after {num_tried - 1} lost or full"
    away = ", and Redis was out of reach" if routed.degraded else ""
    if routed.rule is RouteRule.AFFINITY:
        return f"{best.worker_id}{again}: its tenant is strict, so session and prefix decide, not load{away}"
    if len(routed.terms) == 1:
        return f"{best.worker_id}{again}: the only one that could take it{away}"
    second = routed.terms[1]
    return (
        f"{best.worker_id}{again}: {_why(routed)}, {_cost(best)}; "
        f"next was {second.worker_id} with {_cost(second)}{away}"
    )


def _why(routed: Routed) -> str:
    if routed.rule is RouteRule.TIE:
        return f"several of {len(routed.terms)} workers cost the same, and of two drawn it had fewer requests"
    if routed.rule is RouteRule.REPLICATION:
        return (
            f"the least cost of {len(routed.terms)} workers, since about {routed.heat:.0f} requests began so lately "
            "and will use the copy that is made there"
        )
    return f"the least cost of {len(routed.terms)} workers"


def _cost(term: RouteTerm) -> str:
    return (
        f"{term.cost:.3f} s ({term.queue_s:.3f} s of queue, {term.prefill_s:.3f} s to compute, "
        f"{term.recompute_s:.3f} s for others, {term.matched_tokens:,} tokens expected there"
        f"{'' if term.counted_tokens == term.matched_tokens else ', too few to count'})"
    )


def _miss(looked: Outlooks, routed: Routed, cached: int) -> tuple[Miss, str]:
    if looked.is_stale:
        return Miss.STALE_CONTROL_DATA, "the router's control data was older than its bound"
    if looked.cache_mode is CacheMode.BYPASS:
        return Miss.BYPASSED, "the request asked for no reuse"
    chosen = routed.terms[0]
    own = next((each for each in looked.formats if each.kv_format == chosen.kv_format), None)
    if own is None:
        return Miss.UNKNOWN, "it was planned again before it was sent"
    if cached + own.block_size >= routed.prompt_tokens or cached >= own.num_blocks * own.block_size:
        return Miss.NONE, "all that can be; the last token is always computed"
    if chosen.matched_tokens >= cached + own.block_size:
        return (
            Miss.GONE,
            f"{chosen.matched_tokens:,} were expected there, the rest had gone meanwhile or did not come in time",
        )
    return _elsewhere(looked, routed, chosen) or _nowhere(own)


def _elsewhere(looked: Outlooks, routed: Routed, chosen: RouteTerm) -> tuple[Miss, str] | None:
    """Where another worker had more."""
    most = max(routed.terms, key=lambda term: term.matched_tokens)
    if most.matched_tokens > chosen.matched_tokens and most.kv_format == chosen.kv_format:
        had = f"{most.worker_id} had {most.matched_tokens:,}"
        if routed.rule is RouteRule.AFFINITY:
            return Miss.AFFINITY, f"{had}, but a strict tenant's requests go by their own order"
        if routed.rule is RouteRule.REPLICATION:
            return Miss.REPLICATED, f"{had}, but many requests want that, so that a copy was made"
        if most.counted_tokens < most.matched_tokens:
            return Miss.SHORT_MATCH, f"{had}, too few to count"
        return Miss.LOAD, f"{had}, but would have begun later"
    for each in looked.formats:
        if each.kv_format != chosen.kv_format and each.num_held * each.block_size > chosen.matched_tokens:
            return Miss.OTHER_FORMAT, f"workers of another KV format have {each.num_held * each.block_size:,}"
    return None


def _nowhere(own: Outlook) -> tuple[Miss, str]:
    """Nobody had more."""
    number = own.num_held + 1
    if own.evicted_ago_s is not None:
        return Miss.EVICTED, f"block {number:,} of the prompt was evicted {own.evicted_ago_s:.1f} s before"
    if own.num_held:
        return Miss.DIFFERS, f"no cached prompt goes on like this one in block {number:,}"
    if own.purged_ago_s is not None:
        return Miss.PURGED, f"the partition was purged {own.purged_ago_s:.1f} s before, and nothing like it came since"
    return Miss.NEVER_STORED, "no cached prompt of the partition begins like it"
