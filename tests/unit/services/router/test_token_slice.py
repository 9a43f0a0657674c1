"""Tokens taken ahead or owed by one router, and the meter of a request."""

from __future__ import annotations

import asyncio

import pytest

from cache_store.domain import TenantId
from cache_store.errors import DeadlineError, UnavailableError
from cache_store.limit_store import TokenAsk, TokenGrant
from cache_store.registry import WorkerId
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from services.router.generation import Piece, Started, Timings
from services.router.token_meter import TokenMeter
from services.router.token_slice import IDLE_S, MAX_CLOSED_S, TokenSlice

ACME = TenantId("acme")
RATE = 1_000
NOW_S = 100.0


def slice_with(balance: int) -> TokenSlice:
    tokens = TokenSlice(NOW_S)
    tokens.used_s, tokens.balance = NOW_S, balance
    return tokens


def asked(tokens: TokenSlice, *costs: int, now_s: float = NOW_S) -> TokenAsk | None:
    return tokens.ask(ACME, RATE, costs, 2, now_s)


def test_what_is_at_hand_needs_no_ask() -> None:
    tokens = slice_with(25)
    assert (tokens.take(15), tokens.take(15), tokens.take(10)) == (True, False, True)
    assert asked(tokens) is None


def test_requests_that_wait_are_asked_for_with_what_is_at_hand_and_some_to_spare() -> None:
    tokens = slice_with(10)
    assert asked(tokens, 30, 40) == TokenAsk(ACME, RATE, spent=-10, costs=(30, 40), spare=25)
    assert tokens.balance == 0
    tokens.take_grant(TokenGrant(2, spare=25, level=5.0), RATE, NOW_S)
    assert tokens.take(25)


def test_what_is_owed_is_paid() -> None:
    tokens = slice_with(10)
    tokens.spend(25)
    assert tokens.has_excess(RATE, 2, NOW_S)
    assert asked(tokens) == TokenAsk(ACME, RATE, spent=15, costs=(), spare=25)
    assert not tokens.is_due


def test_what_is_too_much_is_given_back_and_all_of_it_when_the_tenant_rests() -> None:
    tokens = slice_with(80)
    assert tokens.has_excess(RATE, 2, NOW_S)
    assert asked(tokens) == TokenAsk(ACME, RATE, spent=-55, costs=(), spare=0)
    assert asked(tokens, now_s=NOW_S + IDLE_S) == TokenAsk(ACME, RATE, spent=-25, costs=(), spare=0)


def test_an_ask_without_an_answer_is_paid_twice_at_worst() -> None:
    owing, giving = slice_with(-20), slice_with(100)
    for tokens in (owing, giving):
        ask = asked(tokens)
        assert ask is not None
        tokens.was_not_answered(ask)
    assert (owing.balance, giving.balance) == (-20, 25)


def test_the_retry_time_is_when_the_debt_is_paid_and_the_store_is_spared_meanwhile() -> None:
    tokens = slice_with(0)
    tokens.take_grant(TokenGrant(0, 0, level=-500.0), RATE, NOW_S)
    assert tokens.retry_s(NOW_S) == pytest.approx(0.5)
    assert tokens.retry_s(NOW_S + 0.3) == pytest.approx(0.2)
    assert tokens.is_closed(NOW_S + MAX_CLOSED_S / 2)
    assert not tokens.is_closed(NOW_S + MAX_CLOSED_S)
    tokens.spend(-5)
    assert not tokens.is_closed(NOW_S), "tokens that come back may be used at once"


def test_alone_it_takes_its_share_of_the_rate() -> None:
    tokens = slice_with(0)
    admitted = 0
    for tick in range(100):
        admitted += tokens.take_alone(10, RATE / 2, NOW_S + tick / 10)
    assert admitted == 100
    admitted = sum(tokens.take_alone(10, RATE / 2, NOW_S + 10 + tick / 1_000) for tick in range(10_000))
    assert 490 * 10 <= admitted * 10 <= 10 * RATE / 2 + 0.4 * RATE / 2 + 10
    assert tokens.retry_alone_s(RATE / 2, NOW_S + 20) >= 0.01


def test_it_expects_what_earlier_requests_made() -> None:
    tokens = slice_with(0)
    assert tokens.expected_made(500) == 500
    for _ in range(30):
        tokens.learn_made(20)
    assert (tokens.expected_made(500), tokens.expected_made(8)) == (20, 8)
    for _ in range(30):
        tokens.learn_made(400)
    assert 390 <= tokens.expected_made(500) <= 400


TIMINGS = Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0)


def started(prompt: int, cached: int) -> Started:
    return Started(prompt, CachedTokens(cached), WorkerId("w"), 1, False, 0, 1, TIMINGS, 0.0)


def piece(num_tokens: int) -> Piece:
    return Piece(0, "", pack(range(num_tokens)), None)


def test_the_meter_corrects_what_was_estimated() -> None:
    spent: list[int] = []
    meter = TokenMeter(prompt=100, made=10, spend=spent.append)
    meter.note(started(prompt=120, cached=64))
    assert spent == [56 - 100]
    meter.note(piece(8))
    assert spent == [-44]
    meter.note(piece(8))
    meter.note(piece(1))
    meter.end(None)
    assert spent == [-44, 6, 1]
    assert 110 + sum(spent) == 56 + 17


def test_what_was_not_made_is_given_back() -> None:
    spent: list[int] = []
    meter = TokenMeter(100, 10, spent.append)
    meter.note(started(100, 0))
    meter.note(piece(4))
    meter.end(asyncio.CancelledError())
    assert 110 + sum(spent) == 104


@pytest.mark.parametrize(
    ("error", "kept"),
    [(UnavailableError("full", 1.0), 0), (DeadlineError("late"), 100), (asyncio.CancelledError(), 100)],
)
def test_before_the_first_token_only_a_request_that_was_given_up_has_cost_its_prompt(
    error: BaseException, kept: int
) -> None:
    spent: list[int] = []
    meter = TokenMeter(100, 10, spent.append)
    meter.end(error)
    assert 110 + sum(spent) == kept
