"""Curves of reuse against brute force, and what they must not exceed."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.domain import TenantId
from cache_store.reuse_curve import NO_CURVE, ReuseCurve, bin_of, bin_start
from cache_store.reuse_curves import MAX_CURVES, ReuseCurves

ROOMY = 10_000

Requests = list[list[int]]


def digest(name: int) -> bytes:
    return hashlib.blake2b(name.to_bytes(8, "little"), digest_size=16).digest()


def lru_hits(requests: Requests, num_blocks: int) -> int:
    """Blocks that a least-recently-used cache hits, where of one request the tail goes first."""
    held: list[int] = []  # the one used last comes first
    hits = 0
    for request in requests:
        hits += sum(block in held[:num_blocks] for block in request)
        held = [*request, *(block for block in held if block not in request)]
    return hits


def curve_of(requests: Requests, room: int = ROOMY, depth: int = ROOMY) -> ReuseCurve:
    curve = ReuseCurve(room, depth)
    for request in requests:
        curve.use([digest(block) for block in request], len(request), 0.0)
    curve.check_invariants()
    return curve


def chains(sessions: list[tuple[int, int]]) -> Requests:
    """Prompts as a tree of prefixes: two sessions share what comes before they part."""
    return [
        [*range(shared), *(1_000 * (session + 1) + 100 * shared + at for at in range(3))]
        for session, shared in sessions
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=40))
def test_a_curve_that_follows_all_blocks_is_exact(sessions: list[tuple[int, int]]) -> None:
    requests = chains(sessions)
    points = curve_of(requests).points()
    asked = sum(map(len, requests))
    for num_blocks in range(1, 16):
        expected = lru_hits(requests, num_blocks) / asked if asked else 0.0
        assert points.hit_share(num_blocks) == pytest.approx(expected, abs=1e-9)


def test_bins_follow_each_other() -> None:
    for distance in (0, 1, 2, 3, 10, 1_000, 123_456, 10**8):
        at = bin_of(distance)
        assert bin_start(at) <= distance + 1e-6 * distance < bin_start(at + 1) * (1 + 1e-6)
    assert len({bin_of(distance) for distance in range(16)}) == 16, "small distances have bins of their own"


def long_course(number: int) -> Requests:
    """Sessions of a skewed popularity that grow, over a common beginning."""
    rng = random.Random(7)
    lengths: dict[int, int] = {}
    requests = []
    for _ in range(number):
        session = int(rng.paretovariate(0.7)) % 400
        lengths[session] = lengths.get(session, 3) + rng.randrange(4)
        requests.append([*range(20), *(10_000 * (session + 1) + at for at in range(lengths[session]))])
    return requests


def test_a_sampled_curve_is_within_two_points_of_the_whole_one() -> None:
    requests = long_course(1_200)
    exact, sampled = curve_of(requests, 1 << 20, 1 << 20), curve_of(requests, 1_000, 1 << 20)
    assert sampled.num_followed <= 1_000 < exact.num_followed
    for num_blocks in (500, 1_000, 3_000, 8_000):
        assert sampled.points().hit_share(num_blocks) == pytest.approx(exact.points().hit_share(num_blocks), abs=0.02)


def test_beyond_the_depth_that_matters_the_oldest_are_forgotten_and_no_fewer_followed() -> None:
    curve = curve_of([[block] for block in range(300)], room=100, depth=50)
    assert curve.num_followed == 100
    curve.use([digest(299 - 60)], 1, 0.0)
    assert curve.points().hit_share(70) == pytest.approx(1 / 301)
    assert curve.points().hit_share(30) == 0.0


def test_what_an_answer_wrote_is_followed_and_was_not_asked_for() -> None:
    curve = ReuseCurve(ROOMY, ROOMY)
    curve.use([digest(block) for block in range(4)], 2, 0.0)
    assert curve.points().asked_blocks == 2
    curve.use([digest(block) for block in range(4)], 4, 0.0)
    assert curve.points().hit_share(4) == pytest.approx(4 / 6)


def test_what_was_asked_for_long_ago_counts_less() -> None:
    curve = ReuseCurve(ROOMY, ROOMY, half_life_s=10.0)
    for _ in range(100):
        curve.use([digest(1)], 1, 0.0)
    assert curve.points().hit_share(1) > 0.9
    for at in range(100):
        curve.use([digest(1_000 + at)], 1, 100.0)
    assert curve.points().hit_share(1) < 0.01
    curve.use([digest(1)], 1, 1e6)
    assert curve.points().asked_blocks >= 1


def test_a_curve_that_gets_less_room_goes_on() -> None:
    curve = curve_of([list(range(100))] * 3, room=200)
    before = curve.points().hit_share(100)
    curve.resize(30)
    curve.check_invariants()
    curve.use([digest(block) for block in range(100)], 100, 0.0)
    curve.check_invariants()
    assert curve.points().hit_share(100) >= before


def test_all_curves_together_are_bounded() -> None:
    curves = ReuseCurves(1_000, 500)
    for number in range(MAX_CURVES + 20):
        curve = curves.open(TenantId(str(number)))
        assert curve is not None
        for block in range(50):
            curve.use([digest(1_000 * number + block)], 1, 0.0)
    known = [number for number in range(MAX_CURVES + 20) if curves.points(TenantId(str(number))) is not NO_CURVE]
    assert len(known) == MAX_CURVES
    curves.close(TenantId(str(known[-1])))
    assert curves.points(TenantId(str(known[-1]))) is NO_CURVE


def test_nothing_is_followed_where_there_is_no_room() -> None:
    assert ReuseCurves(0, 500).open(TenantId("acme")) is None


def test_one_tenants_curve_does_not_depend_on_another_tenant() -> None:
    alone, beside = ReuseCurves(1 << 16, 500), ReuseCurves(1 << 16, 500)
    acme = TenantId("acme")
    first, second, other = alone.open(acme), beside.open(acme), beside.open(TenantId("globex"))
    assert first is not None
    assert second is not None
    assert other is not None
    for request in long_course(200):
        names = [digest(block) for block in request]
        first.use(names, len(names), 0.0)
        second.use(names, len(names), 0.0)
        other.use([digest(block + 5) for block in request], len(request), 0.0)
    assert alone.points(acme) == beside.points(acme)
