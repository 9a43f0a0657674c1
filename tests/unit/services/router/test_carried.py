"""Tokens that go from a lost worker to the next one: nothing twice, nothing left out, nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.errors import ComputationError
from cache_store.tokens import PackedTokens, pack
from services.router.answer import Answer
from services.router.carried import Carried, DivergedError
from services.router.generation import FinishReason
from services.router.worker_client import WorkerTokens


def carried(num_samples: int) -> Carried:
    return Carried(Answer(num_samples, None, (), ()), num_samples)


def made(sample: int, *tokens: int, finish: FinishReason | None = None) -> WorkerTokens:
    return WorkerTokens(sample, pack(tokens), finish)


def test_one_sample_goes_on_from_prompt_and_tokens() -> None:
    one = carried(1)
    one.begin()
    assert one.take(made(0, 5, 6)) == made(0, 5, 6)
    one.begin()
    assert (one.prefix, one.num_done) == (pack((5, 6)), 2)
    assert one.take(made(0, 7)) == made(0, 7)
    assert one.num_done == 3


def test_several_samples_are_made_again_and_what_came_is_skipped() -> None:
    two = carried(2)
    two.begin()
    two.take(made(0, 5, 6))
    two.take(made(1, 8, finish=FinishReason.STOP))
    two.begin()
    assert two.num_done == 0
    assert two.take(made(0, 5)) is None
    assert two.take(made(1, 8, finish=FinishReason.STOP)) is None
    assert two.take(made(0, 6, 7)) == made(0, 7)


def test_an_end_that_had_not_come_comes_without_tokens() -> None:
    two = carried(2)
    two.begin()
    two.take(made(0, 5))
    two.begin()
    assert two.take(made(0, 5, finish=FinishReason.LENGTH)) == made(0, finish=FinishReason.LENGTH)


def test_a_worker_that_makes_other_tokens_is_not_followed() -> None:
    two = carried(2)
    two.begin()
    two.take(made(0, 5, 6))
    two.begin()
    with pytest.raises(DivergedError):
        two.take(made(0, 5, 9))


def test_a_sample_that_was_not_asked_for_is_an_error() -> None:
    with pytest.raises(ComputationError):
        carried(1).take(made(1, 5))


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=2, max_size=3), st.data())
def test_however_often_workers_are_lost_each_token_comes_once(whole: list[list[int]], data: st.DataObject) -> None:
    request = carried(len(whole))
    told: list[list[bytes]] = [[] for _ in whole]
    for is_last in (False, False, True):
        request.begin()
        for index, tokens in enumerate(whole):
            stop = len(tokens) if is_last else data.draw(st.integers(0, len(tokens)))
            at = 0
            while at < stop:
                size = data.draw(st.integers(1, stop - at))
                fresh = request.take(made(index, *tokens[at : at + size]))
                told[index].append(fresh.tokens if fresh is not None else PackedTokens(b""))
                at += size
    assert [b"".join(parts) for parts in told] == [bytes(pack(tokens)) for tokens in whole]
