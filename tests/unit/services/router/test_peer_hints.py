"""Which other worker is named to the chosen one: one that has clearly more, answers, and serves the same format."""

from __future__ import annotations

from dataclasses import replace

from cache_store.domain import FormatDigest
from cache_store.index import Incarnation
from services.router.peer_hints import MIN_BLOCKS, find_peer, others_have_more
from services.router.routing import RouteChoice, RouteRule, WorkerView
from tests.support.worker_records import worker_record

NOBODY: frozenset[Incarnation] = frozenset()


def view(name: str, **changes: object) -> WorkerView:
    record = worker_record(name, block_size=16, **changes)
    return WorkerView(record, suspected=False, pending_prefill_tokens=0, pending_requests=0, request_s=0.0)


CHOSEN, NEAR, FAR = view("w0"), view("w1"), view("w2")
VIEWS = (CHOSEN, NEAR, FAR)
CHOICE = RouteChoice(CHOSEN.record, (), RouteRule.COST)


def matched(chosen: int = 0, near: int = 0, far: int = 0) -> dict[Incarnation, int]:
    return {each.record.incarnation: num for each, num in zip(VIEWS, (chosen, near, far), strict=True)}


def test_the_one_that_has_most_is_named() -> None:
    peer = find_peer(CHOICE, VIEWS, matched(0, 160, 320), NOBODY)
    assert peer is not None
    assert (peer.worker, peer.num_blocks) == (FAR.record, 20)


def test_nobody_is_named_for_little_more() -> None:
    assert find_peer(CHOICE, VIEWS, matched(160, 160, 160), NOBODY) is None
    assert find_peer(CHOICE, VIEWS, matched(160, 160 + 16 * MIN_BLOCKS - 1), NOBODY) is None
    assert find_peer(CHOICE, VIEWS, matched(160, 160 + 16 * MIN_BLOCKS), NOBODY) is not None
    assert find_peer(CHOICE, VIEWS, {}, NOBODY) is None
    assert not others_have_more(CHOICE, {})
    assert not others_have_more(CHOICE, matched(160, 160 + 16 * MIN_BLOCKS - 1))
    assert others_have_more(CHOICE, matched(160, 160 + 16 * MIN_BLOCKS))


def test_strict_tenants_requests_get_none() -> None:
    strict = replace(CHOICE, rule=RouteRule.AFFINITY)
    assert find_peer(strict, VIEWS, matched(0, 320), NOBODY) is None


def test_workers_that_do_not_answer_or_were_lost_are_not_named() -> None:
    suspected = (CHOSEN, replace(NEAR, suspected=True), FAR)
    assert find_peer(CHOICE, suspected, matched(0, 320), NOBODY) is None
    assert find_peer(CHOICE, VIEWS, matched(0, 320), frozenset({NEAR.record.incarnation})) is None


def test_blocks_of_another_format_are_of_no_use() -> None:
    other = view("w1", kv_format=FormatDigest(b"o" * 16))
    assert find_peer(CHOICE, (CHOSEN, other), {other.record.incarnation: 320}, NOBODY) is None


def test_of_equals_one_that_stays_is_named_and_one_that_leaves_if_there_is_no_other() -> None:
    leaving = view("w1", draining=True)
    views = (CHOSEN, leaving, FAR)
    tokens = {leaving.record.incarnation: 320, FAR.record.incarnation: 320}
    peer = find_peer(CHOICE, views, tokens, NOBODY)
    assert peer is not None
    assert peer.worker is FAR.record
    peer = find_peer(CHOICE, (CHOSEN, leaving), tokens, NOBODY)
    assert peer is not None
    assert peer.worker is leaving.record
