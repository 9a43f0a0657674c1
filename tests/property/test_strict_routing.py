"""Strict tenants' requests: where they go follows from the request and the workers that live, from nothing else."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cache_store.domain import TenantId
from cache_store.index import Incarnation
from cache_store.registry import WorkerLoad
from cache_store.tokens import pack
from services.router.rendezvous import AFFINITY_TOKENS, NO_AFFINITY, Affinity, affinity, in_order
from services.router.routing import RouteChoice, RouteRequest, RouteRule, WorkerView, choose
from tests.support.worker_records import worker_record

ACME = TenantId("acme")
NAMES = [f"worker-{at}" for at in range(6)]
COUNT = st.integers(0, 100_000)
LOADS = st.builds(WorkerLoad, COUNT, COUNT, COUNT, st.floats(0, 1e6), st.integers(0, 64))
STATE = st.tuples(LOADS, COUNT, COUNT, st.floats(0, 1e3), st.integers(0, 200))
"""What others do to a worker, as this router sees it: load, own pending requests and tokens, times, index."""
REQUESTS = st.builds(affinity, st.just(ACME), st.text(max_size=3), st.text(max_size=3), st.just(pack(range(50))))


def ask(common: Affinity | None) -> RouteRequest:
    """None: of a tenant that is not strict."""
    return RouteRequest("m", 100, 10, 1, frozenset(), affinity=common or NO_AFFINITY, is_strict=common is not None)


def route(common: Affinity | None, states: list[tuple[WorkerLoad, int, int, float, int]]) -> RouteChoice:
    views = []
    matched = {}
    for name, (load, pending_tokens, pending, request_s, found) in zip(NAMES, states, strict=False):
        views.append(WorkerView(worker_record(name, load=load), False, pending_tokens, pending, request_s))
        matched[Incarnation(name)] = found
    return choose(views, matched, ask(common))


@given(REQUESTS, st.lists(STATE, min_size=6, max_size=6), st.lists(STATE, min_size=6, max_size=6))
def test_neither_load_nor_index_changes_the_choice(common: Affinity, before: list, after: list) -> None:
    one, other = route(common, before), route(common, after)
    assert one.worker.worker_id == other.worker.worker_id == one.terms[0].worker_id
    assert [term.worker_id for term in one.terms] == [term.worker_id for term in other.terms]
    assert one.rule is RouteRule.AFFINITY


def test_the_same_load_does_move_a_tenant_that_is_not_strict() -> None:
    idle, busy = WorkerLoad(0, 0, 0, 1e3, 0), WorkerLoad(0, 0, 50_000, 1e3, 0)
    first = route(None, [(idle, 0, 0, 0.0, 0), (busy, 0, 0, 0.0, 0)])
    second = route(None, [(busy, 0, 0, 0.0, 0), (idle, 0, 0, 0.0, 0)])
    assert (first.worker.worker_id, second.worker.worker_id) == ("worker-0", "worker-1")
    assert first.rule is RouteRule.COST


@given(REQUESTS, st.sets(st.sampled_from(NAMES), min_size=2))
def test_a_worker_that_leaves_gives_away_its_own_part_only(common: Affinity, names: set) -> None:
    order = in_order(common, names)
    assert in_order(common, names - {order[-1]}) == order[:-1]
    assert in_order(common, names - {order[0]}) == order[1:]


def test_a_worker_that_joins_takes_a_fair_part() -> None:
    sessions = [affinity(ACME, "", f"session {at}", pack(())) for at in range(3_000)]
    before = [in_order(each, NAMES[:5])[0] for each in sessions]
    after = [in_order(each, NAMES)[0] for each in sessions]
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {NAMES[5]}
    assert all(400 < number < 600 for number in Counter(after).values())


def test_a_lost_worker_is_followed_by_the_next_in_order() -> None:
    views = [WorkerView(worker_record(name), False, 0, 0, 0.0) for name in NAMES]
    common = affinity(ACME, "", "s", pack(()))
    order = in_order(common, NAMES)
    for at, expected in enumerate(order):
        tried = frozenset(Incarnation(name) for name in order[:at])
        request = dataclasses.replace(ask(common), excluded=tried)
        assert choose(views, {}, request).worker.worker_id == expected


def test_draining_suspected_and_too_small_workers_are_passed_over() -> None:
    common = affinity(ACME, "", "s", pack(()))
    order = in_order(common, NAMES)
    changes = {order[0]: {"draining": True}, order[1]: {"num_blocks": 6}}
    views = [
        WorkerView(worker_record(name, **changes.get(name, {})), name == order[2], 0, 0, 0.0)  # type: ignore[arg-type]
        for name in NAMES
    ]
    choice = choose(views, {}, ask(common))
    assert [term.worker_id for term in choice.terms] == order[3:]


def test_a_conversation_without_a_session_stays_once_it_is_long_and_moves_by_doubling_before() -> None:
    tokens = list(range(5_000))
    seen = [affinity(ACME, "", "", pack(tokens[:length])) for length in range(1, 5_000)]
    assert len(set(seen[AFFINITY_TOKENS - 1 :])) == 1
    assert sum(a != b for a, b in pairwise(seen)) == 10


WHO = st.tuples(st.sampled_from(["a", "b"]), st.text(max_size=2), st.text(max_size=2))


@given(WHO, WHO)
def test_tenants_partitions_and_sessions_do_not_alias(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    a, b = (affinity(TenantId(tenant), part, session, pack((1, 2))) for tenant, part, session in (one, other))
    assert (a == b) == (one == other)


def test_a_session_counts_more_than_the_prompt() -> None:
    prompts = [pack(range(at, at + 2_000)) for at in range(2)]
    assert len({affinity(ACME, "", "s", prompt) for prompt in prompts}) == 1
    assert len({affinity(ACME, "", "", prompt) for prompt in prompts}) == 2
