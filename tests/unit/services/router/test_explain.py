"""Explanations: each reason for a miss, told from the record of a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.domain import FormatDigest
from cache_store.registry import WorkerId
from cache_store.usage import CachedTokens
from services.router.explain import Miss, explain
from services.router.generation import CacheMode
from services.router.outlook import Outlook, Outlooks
from services.router.records import Ended, Entry, FirstToken, RequestRecord, Routed
from services.router.routing import RouteRule, RouteTerm

OWN, OTHER = FormatDigest(b"o" * 16), FormatDigest(b"p" * 16)
A, B = WorkerId("a"), WorkerId("b")
OUTLOOK = Outlook(OWN, block_size=16, num_blocks=10, num_held=4, evicted_ago_s=None, purged_ago_s=None)
LOOKED = Outlooks(CacheMode.READ_WRITE, False, (OUTLOOK,))


def term(
    worker: WorkerId, matched: int, queue_s: float = 0.0, kv_format: FormatDigest = OWN, counted: int | None = None
) -> RouteTerm:
    return RouteTerm(worker, kv_format, matched, matched if counted is None else counted, queue_s, 0.1, 0.5)


def routed(*terms: RouteTerm, rule: RouteRule = RouteRule.COST, degraded: bool = False) -> Routed:
    return Routed(165, rule, terms, degraded, 0.001, heat=12.4)


def record(*entries: Entry) -> RequestRecord:
    return RequestRecord("acme", "r", list(entries))


def started(cached: int, worker: WorkerId = A) -> FirstToken:
    return FirstToken(worker, CachedTokens(cached))


def looked(**changes: object) -> Outlooks:
    return replace(LOOKED, formats=(replace(OUTLOOK, **changes),))  # type: ignore[arg-type]  # names of its fields


CASES: dict[Miss, tuple[Outlooks, Routed, int, str]] = {
    Miss.NONE: (
        looked(num_held=10),
        routed(term(A, 160)),
        160,
        "160 of 165 prompt tokens were reused: all that can be",
    ),
    Miss.BYPASSED: (replace(LOOKED, cache_mode=CacheMode.BYPASS, formats=()), routed(term(A, 0)), 0, "asked for no"),
    Miss.STALE_CONTROL_DATA: (
        replace(LOOKED, is_stale=True, formats=()),
        routed(term(A, 0)),
        0,
        "older than its bound",
    ),
    Miss.GONE: (LOOKED, routed(term(A, 64)), 32, "64 were expected there"),
    Miss.LOAD: (LOOKED, routed(term(A, 32), term(B, 64, queue_s=3)), 32, "b had 64, but would have begun later"),
    Miss.AFFINITY: (LOOKED, routed(term(A, 32), term(B, 64), rule=RouteRule.AFFINITY), 32, "by their own order"),
    Miss.SHORT_MATCH: (LOOKED, routed(term(A, 0), term(B, 16, counted=0)), 0, "b had 16, too few to count"),
    Miss.REPLICATED: (
        LOOKED,
        routed(term(A, 0), term(B, 64, queue_s=3), rule=RouteRule.REPLICATION),
        0,
        "b had 64, but many requests want that",
    ),
    Miss.OTHER_FORMAT: (
        replace(LOOKED, formats=(OUTLOOK, replace(OUTLOOK, kv_format=OTHER, num_held=8))),
        routed(term(A, 64), term(B, 128, queue_s=9, kv_format=OTHER)),
        64,
        "another KV format have 128",
    ),
    Miss.EVICTED: (
        looked(evicted_ago_s=2.5, purged_ago_s=1.0),
        routed(term(A, 64)),
        64,
        "block 5 of the prompt was evicted 2.5",
    ),
    Miss.DIFFERS: (looked(purged_ago_s=1.0), routed(term(A, 64)), 64, "goes on like this one in block 5"),
    Miss.PURGED: (looked(num_held=0, purged_ago_s=4.0), routed(term(A, 0)), 0, "purged 4.0 s before"),
    Miss.NEVER_STORED: (looked(num_held=0), routed(term(A, 0)), 0, "begins like it"),
}


@pytest.mark.parametrize("miss", CASES)
def test_each_reason_is_told(miss: Miss) -> None:
    outlooks, route, cached, words = CASES[miss]
    told = explain(record(outlooks, route, started(cached)))
    assert told.miss is miss
    assert words in told.reuse
    assert told.first_missing_token == cached


def test_no_reason_is_left_out() -> None:
    assert set(CASES) == set(Miss) - {Miss.UNKNOWN}


def test_a_request_that_was_not_routed_says_so() -> None:
    assert "no worker was chosen yet" in explain(record(LOOKED)).route
    told = explain(record(LOOKED, Ended("UNAVAILABLE", 0, None)))
    assert (told.worker_id, told.miss) == ("", Miss.UNKNOWN)
    assert "UNAVAILABLE" in told.route


def test_the_route_names_the_next_best_and_its_costs() -> None:
    told = explain(record(LOOKED, routed(term(A, 64), term(B, 0, queue_s=3), degraded=True)))
    assert told.worker_id == "a"
    assert told.miss is Miss.UNKNOWN
    assert "the least cost of 2 workers, 0.600 s" in told.route
    assert "next was b with 3.600 s" in told.route
    assert "Redis was out of reach" in told.route


def test_a_second_worker_is_explained_by_what_the_first_one_found() -> None:
    told = explain(record(LOOKED, routed(term(A, 64)), started(64, A), routed(term(B, 0))))
    assert told.worker_id == "b"
    assert "after 1 lost or full" in told.route
    assert told.miss is Miss.DIFFERS
