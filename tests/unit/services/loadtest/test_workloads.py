"""Workloads are the same for the same seed, share what they say, and fit the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.errors import InvalidRequestError
from cache_store.tokens import count, unpack
from services.loadtest.own_prefix import with_own_prefix
from services.loadtest.sessions import Session, Workload
from services.loadtest.token_source import TokenSource, stable_rng
from services.loadtest.workloads import USUAL, ModelRoom, WorkloadKind, WorkloadSpec, build, longest

ROOM = ModelRoom(8_192, 10_000)
SYNTHETIC = [kind for kind in WorkloadKind if kind is not WorkloadKind.TRACE]


def made(spec: WorkloadSpec, seed: int = 0, room: ModelRoom = ROOM) -> Workload:
    return build(spec, TokenSource(range(100, 200), seed, "acme"), room, stable_rng(seed))


def prompt(session: Session) -> bytes:
    return b"".join(session.turns[0].parts)


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_the_same_seed_makes_the_same_requests_and_another_one_others(kind: WorkloadKind) -> None:
    first, again, other = (list(islice(made(USUAL[kind], seed).sessions, 20)) for seed in (1, 1, 2))
    assert first == again
    assert not {prompt(each) for each in first} & {prompt(each) for each in other}


@pytest.mark.parametrize("kind", SYNTHETIC)
@given(ratio=st.sampled_from([0.0, 0.5, 0.9]))
def test_no_request_is_longer_than_it_says(kind: WorkloadKind, ratio: float) -> None:
    spec = replace(USUAL[kind], prefix_len=64, suffix_len=20, output_len=10, range_ratio=ratio, turns=3)
    for session in islice(made(spec).sessions, 20):
        total = sum(sum(map(count, turn.parts)) + turn.max_tokens for turn in session.turns)
        assert 0 < total <= longest(spec)


@pytest.mark.parametrize("kind", [each for each in SYNTHETIC if each is not WorkloadKind.RANDOM])
def test_sessions_of_a_group_begin_alike_and_others_do_not(kind: WorkloadKind) -> None:
    spec = replace(USUAL[kind], num_prefixes=3, prefix_len=64)
    begins: dict[str | None, set[bytes]] = {}
    workload = made(spec)
    for session in islice(workload.sessions, 60):
        assert session.prefix_tokens == 64
        begins.setdefault(session.prefix_group, set()).add(prompt(session)[: 64 * 4])
    assert all(len(each) == 1 for each in begins.values())
    assert {each for group in begins.values() for each in group} <= set(workload.primes)
    assert len({prompt(each) for each in islice(made(spec).sessions, 60)}) == 60


def test_each_prefix_comes_as_often_as_the_others() -> None:
    spec = replace(USUAL[WorkloadKind.PREFIX_REPETITION], num_prefixes=5)
    groups = Counter(each.prefix_group for each in islice(made(spec).sessions, 50))
    assert set(groups.values()) == {10}


def test_some_system_prompts_are_far_more_popular() -> None:
    spec = replace(USUAL[WorkloadKind.SHARED_PREFIX], num_prefixes=10, zipf=1.0, prefix_len=8, suffix_len=1)
    groups = Counter(each.prefix_group for each in islice(made(spec).sessions, 5_000))
    harmonic = sum(1 / rank for rank in range(1, 11))
    assert groups["p0"] / 5_000 == pytest.approx(1 / harmonic, rel=0.1)
    assert groups["p9"] / 5_000 == pytest.approx(0.1 / harmonic, rel=0.3)


def test_tier_pressure_takes_as_many_times_the_pool_as_asked_for() -> None:
    spec = replace(USUAL[WorkloadKind.TIER_PRESSURE], prefix_len=100, pool_factor=2.5)
    workload = made(spec)
    assert sum(map(count, workload.primes)) == 25_000
    order = [each.prefix_group for each in islice(workload.sessions, 500)]
    assert order[:250] == order[250:]
    assert len(set(order)) == 250


def test_tier_pressure_needs_to_know_the_pool() -> None:
    with pytest.raises(InvalidRequestError, match="--pool-tokens"):
        made(USUAL[WorkloadKind.TIER_PRESSURE], room=ModelRoom(8_192, 0))


def test_what_does_not_fit_the_model_is_refused_with_what_would() -> None:
    with pytest.raises(InvalidRequestError, match=r"4,160 tokens .* takes 512; lower --prefix-len"):
        made(USUAL[WorkloadKind.DOCUMENTS], room=ModelRoom(512, 0))


@pytest.mark.parametrize("change", [{"turns": 0}, {"range_ratio": 1.0}, {"prefix_len": -1}, {"zipf": 0.0}])
def test_parameters_that_make_no_sense_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError):
        replace(USUAL[WorkloadKind.CONVERSATION], **change)


def test_a_session_is_cut() -> None:
    session = next(made(USUAL[WorkloadKind.CONVERSATION]).sessions)
    assert session.cut(2) == replace(session, turns=session.turns[:2])
    assert session.cut(9) is session


def test_a_run_without_partitions_begins_all_prompts_with_tokens_of_its_own() -> None:
    """Else a repeated seed would measure a warm cache."""
    spec = replace(USUAL[WorkloadKind.SHARED_PREFIX], prefix_len=32)
    own = TokenSource(range(100), 0, "run").fresh(16)
    plain, begun = made(spec), with_own_prefix(made(spec), own)
    assert begun.primes == tuple(own + each for each in plain.primes)
    for before, after in zip(islice(plain.sessions, 10), begun.sessions, strict=False):
        assert prompt(after) == own + prompt(before)
        assert after.prefix_tokens == 48


def test_synthetic_tokens_are_the_same_everywhere() -> None:
    """Golden: neither Python's hash() nor a library's version decides them."""
    source = TokenSource(range(1_000), 7, "acme")
    assert unpack(source.fresh(6)) == GOLDEN_FRESH
    assert unpack(source.block(42, 6)) == GOLDEN_BLOCK
    assert source.block(42, 4) == source.block(42, 6)[:16]
    assert source.block(43, 6) != source.block(42, 6)
    assert TokenSource(range(1_000), 7, "globex").block(42, 6) != source.block(42, 6)


GOLDEN_FRESH = [551, 642, 657, 150, 43, 654]
GOLDEN_BLOCK = [756, 260, 371, 299, 386, 120]


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (WorkloadKind.SHARED_PREFIX, {"num_prefixes": 99_999_999}, "lower --num-prefixes"),
        (WorkloadKind.SHARED_PREFIX, {"num_prefixes": 1_000_000, "prefix_len": 4_096}, "lower --num-prefixes"),
        (WorkloadKind.TIER_PRESSURE, {"pool_factor": 1e9}, "--pool-factor"),
        (WorkloadKind.DOCUMENTS, {"num_prefixes": 1_000_000, "turns": 4_000}, "too many"),
        (WorkloadKind.DOCUMENTS, {"turns": 99_999_999}, "at most 4,096"),
    ],
)
def test_what_would_take_all_memory_is_refused(kind: WorkloadKind, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        made(replace(USUAL[kind], **changes))
