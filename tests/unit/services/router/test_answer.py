"""Samples of an answer: stop strings and stop tokens end them, and what the worker still makes is nobody's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cache_store.errors import ComputationError
from cache_store.tokens import pack
from services.router.answer import Answer
from services.router.generation import FinishReason, Piece
from services.router.worker_client import WorkerTokens


def decode(ids: Sequence[int]) -> str:
    """A token is a byte."""
    return bytes(ids).decode("utf-8", "replace")


def answer(num_samples: int = 1, stops: Sequence[str] = ()) -> Answer:
    return Answer(num_samples, decode, [], stops)


def made(text: str, sample: int = 0, finish: FinishReason | None = None) -> WorkerTokens:
    return WorkerTokens(sample, pack(list(text.encode())), finish)


def piece(text: str, tokens: str, finish: FinishReason | None = None, sample: int = 0) -> Piece:
    return Piece(sample, text, pack(list(tokens.encode())), finish)


def test_text_comes_with_its_tokens() -> None:
    assert answer().push(made("ab")) == piece("ab", "ab")


def test_a_stop_string_over_two_messages_ends_the_sample_at_the_token_that_completes_it() -> None:
    given = answer(stops=["END"])
    assert given.push(made("abE")) == piece("ab", "abE")
    assert given.push(made("NDxyz")) == piece("", "ND", FinishReason.STOP)
    assert given.has_ended
    assert given.is_ahead_of_worker
    assert given.push(made("more")) is None


def test_the_others_go_on() -> None:
    given = answer(2, ["X"])
    given.push(made("X", sample=0))
    assert not given.has_ended
    assert given.push(made("ab", sample=1, finish=FinishReason.LENGTH)) == piece("ab", "ab", FinishReason.LENGTH, 1)
    assert given.has_ended
    assert given.is_ahead_of_worker
    assert given.push(made("zz", sample=0, finish=FinishReason.LENGTH)) is None
    assert not given.is_ahead_of_worker


def test_what_was_held_back_is_shown_at_the_end() -> None:
    given = answer(stops=["END"])
    assert given.push(made("aEN")) == piece("a", "aEN")
    assert given.push(made("x", finish=FinishReason.LENGTH)) == piece("ENx", "x", FinishReason.LENGTH)
    given = answer(stops=["END"])
    assert given.push(made("aEN", finish=FinishReason.LENGTH)) == piece("aEN", "aEN", FinishReason.LENGTH)


def test_a_stop_token_is_no_text() -> None:
    assert answer().push(made("ab!", finish=FinishReason.STOP)) == piece("ab", "ab!", FinishReason.STOP)


def test_an_incomplete_character_is_shown_when_nothing_follows() -> None:
    given = Answer(1, decode, [], [])
    cut = WorkerTokens(0, pack(list("é".encode()[:1])), FinishReason.LENGTH)
    shown = given.push(cut)
    assert shown is not None
    assert shown.text == "\ufffd"


def test_a_model_without_text_gives_tokens_only() -> None:
    given = Answer(1, None, [], ["a"])
    assert given.push(made("abc", finish=FinishReason.LENGTH)) == piece("", "abc", FinishReason.LENGTH)


@pytest.mark.parametrize("sample", [1, 2**31])
def test_a_worker_may_not_invent_samples(sample: int) -> None:
    with pytest.raises(ComputationError):
        answer().push(made("a", sample=sample))


def test_a_worker_may_not_go_on_after_the_end() -> None:
    given = answer()
    given.push(made("a", finish=FinishReason.LENGTH))
    with pytest.raises(ComputationError):
        given.push(made("b"))
