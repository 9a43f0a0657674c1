"""Curves of reuse against brute force, and what they must not exceed."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.domain import TenantId
from cache_store.policy import ClassId, Use
from cache_store.reuse_curve import NO_CURVE, NUM_PLACES, ReuseCurve, bin_of, bin_start
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


class FakeBlock:
    """A block as a curve sees it."""

    def __init__(self, name: int) -> None:
        self.digest = digest(name)
        self.shared = False
        self.use: Use | None = None


class Course:
    """Requests of a tenant whose blocks all stay, or all go at once."""

    def __init__(self, curve: ReuseCurve, *, stay: bool) -> None:
        self.curve = curve
        self.blocks: dict[int, FakeBlock] = {}
        self.stay = stay

    def run(self, request: list[int], num_asked: int | None = None, now_s: float = 0.0) -> None:
        blocks = [self.blocks.setdefault(name, FakeBlock(name)) for name in request]
        use = Use(now_s, ClassId(0))
        use.place = self.curve.use(blocks, len(blocks) if num_asked is None else num_asked, now_s)
        for block in blocks:
            block.use = use if self.stay else None
        if not self.stay:
            self.curve.note_evicted(blocks, use.place)


def curve_of(requests: Requests, room: int = ROOMY, depth: int = ROOMY, *, stay: bool = False) -> ReuseCurve:
    course = Course(ReuseCurve(room, depth), stay=stay)
    for request in requests:
        course.run(request)
    course.curve.check_invariants()
    return course.curve


def chains(sessions: list[tuple[int, int]]) -> Requests:
    """Prompts as a tree of prefixes: two sessions share what comes before they part."""
    return [
        [*range(shared), *(1_000 * (session + 1) + 100 * shared + at for at in range(3))]
        for session, shared in sessions
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=40), st.booleans())
def test_a_curve_is_exact_where_blocks_stay_and_where_all_that_went_are_followed(
    sessions: list[tuple[int, int]], stay: bool
) -> None:
    requests = chains(sessions)
    points = curve_of(requests, stay=stay).points()
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


def test_of_blocks_that_stay_the_curve_needs_no_sample() -> None:
    requests = long_course(600)
    exact, sampled = curve_of(requests, stay=True), curve_of(requests, room=10, stay=True)
    assert sampled.num_followed <= 10
    assert sampled.points() == exact.points()


def test_of_blocks_that_went_a_sample_tells_about_the_same() -> None:
    requests = [request[20:] for request in long_course(800)]
    exact, sampled = curve_of(requests), curve_of(requests, room=800)
    assert sampled.num_followed <= 800 < exact.num_followed
    for num_blocks in (1_000, 2_000, 4_000):
        assert sampled.points().hit_share(num_blocks) == pytest.approx(exact.points().hit_share(num_blocks), abs=0.04)


def test_beyond_the_depth_that_matters_the_oldest_are_forgotten_and_no_fewer_followed() -> None:
    course = Course(ReuseCurve(100, 50), stay=False)
    for block in range(300):
        course.run([block])
    assert course.curve.num_followed == 100
    course.run([299 - 60])
    assert course.curve.points().hit_share(70) == pytest.approx(1 / 301)
    assert course.curve.points().hit_share(30) == 0.0
    course.curve.check_invariants()


def test_what_an_answer_wrote_is_followed_and_was_not_asked_for() -> None:
    course = Course(ReuseCurve(ROOMY, ROOMY), stay=True)
    course.run([0, 1, 2, 3], num_asked=2)
    assert course.curve.points().asked_blocks == 2
    course.run([0, 1, 2, 3])
    assert course.curve.points().hit_share(4) == pytest.approx(4 / 6)


@pytest.mark.parametrize("stay", [True, False])
def test_what_was_asked_for_long_ago_counts_less(stay: bool) -> None:
    course = Course(ReuseCurve(ROOMY, ROOMY, half_life_s=10.0), stay=stay)
    for _ in range(100):
        course.run([1])
    assert course.curve.points().hit_share(1) > 0.9
    for at in range(100):
        course.run([1_000 + at], now_s=100.0)
    assert course.curve.points().hit_share(1) < 0.01
    course.run([1], now_s=1e6)
    assert course.curve.points().asked_blocks >= 1
    course.curve.check_invariants()


@pytest.mark.parametrize("stay", [True, False])
def test_very_many_requests_are_told_apart_by_those_of_late(stay: bool) -> None:
    course = Course(ReuseCurve(ROOMY, ROOMY), stay=stay)
    for at in range(2 * NUM_PLACES):
        course.run([at])
    course.run([2 * NUM_PLACES - 5])
    assert course.curve.points().hit_share(10) > 0
    before = course.curve.points().hit_share(4 * NUM_PLACES)
    course.run([3])
    assert course.curve.points().hit_share(4 * NUM_PLACES) < before, "it was used too long ago"
    course.curve.check_invariants()


def test_a_curve_that_gets_less_room_goes_on() -> None:
    course = Course(ReuseCurve(200, ROOMY), stay=False)
    for _ in range(3):
        course.run(list(range(100)))
    course.curve.resize(30)
    course.run(list(range(100)))
    course.curve.check_invariants()
    assert course.curve.points().hit_share(200) > 0.5


def test_all_curves_together_are_bounded() -> None:
    curves = ReuseCurves(1_000, 500)
    for number in range(MAX_CURVES + 20):
        curve = curves.open(TenantId(str(number)))
        assert curve is not None
        course = Course(curve, stay=False)
        for block in range(20):
            course.run([1_000 * number + block])
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
    courses = [Course(first, stay=False), Course(second, stay=False), Course(other, stay=False)]
    for request in long_course(200):
        courses[0].run(request)
        courses[1].run(request)
        courses[2].run([block + 5 for block in request])
    assert alone.points(acme) == beside.points(acme)
