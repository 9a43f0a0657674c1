"""The choice of a worker: who is dropped, who is cheapest, and that the terms say why."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.index import Incarnation
from cache_store.registry import WorkerId, WorkerRecord
from services.router.rendezvous import Affinity
from services.router.routing import (
    MIN_MATCH_TOKENS,
    RECOMPUTE_WEIGHT,
    TUNING,
    RouteChoice,
    RouteRequest,
    RouteRule,
    WorkerView,
    choose,
)
from tests.support.worker_records import IDLE, worker_record

ASK = RouteRequest(model="m", prompt_tokens=100, max_tokens=10, num_samples=1, excluded=frozenset())


def view(record: WorkerRecord, **changes: float) -> WorkerView:
    base = WorkerView(record, suspected=False, pending_prefill_tokens=0, pending_requests=0, request_s=0.0)
    return dataclasses.replace(base, **changes)


def pick(*views: WorkerView, ask: RouteRequest = ASK, **matched: int) -> RouteChoice:
    by_incarnation = {Incarnation(name): tokens for name, tokens in matched.items()}
    return choose(views, by_incarnation, ask)


def queued(tokens: int, rate: float = 1_000.0) -> WorkerRecord:
    return worker_record("b", load=dataclasses.replace(IDLE, queued_prefill_tokens=tokens, prefill_tokens_per_s=rate))


def test_takes_the_worker_that_holds_the_prefix() -> None:
    assert pick(view(worker_record("a")), view(worker_record("b")), b=96).worker.worker_id == "b"


def test_a_long_queue_outweighs_a_short_prefix() -> None:
    assert pick(view(worker_record("a")), view(queued(5_000)), b=16).worker.worker_id == "a"


def test_the_terms_are_those_of_the_formula_best_first() -> None:
    choice = pick(view(worker_record("a")), view(queued(500, rate=2_000.0)), b=80)
    b, a = choice.terms
    assert (b.worker_id, b.matched_tokens, b.queue_s, b.prefill_s) == ("b", 80, 0.25, 0.01)
    assert b.cost == pytest.approx(0.25 + 0.01 + RECOMPUTE_WEIGHT * 20 / 1_500.0)
    assert (a.worker_id, a.matched_tokens, a.queue_s, a.prefill_s) == ("a", 0, 0.0, 0.1)


def test_a_worker_that_is_somewhat_quicker_does_not_draw_everything() -> None:
    quicker = queued(100, rate=1_300.0)
    assert pick(view(worker_record("a")), view(quicker)).worker.worker_id == "a", "its queue costs more than it saves"
    assert pick(view(worker_record("a")), view(queued(0, rate=1_300.0))).worker.worker_id == "b"


def test_the_last_prompt_token_is_always_computed() -> None:
    assert pick(view(worker_record("a")), a=112).terms[0].matched_tokens == 99


def test_own_requests_on_their_way_count_as_queue() -> None:
    busy = view(worker_record("a"), pending_prefill_tokens=400)
    assert pick(busy, view(worker_record("b"))).worker.worker_id == "b"


def test_waiting_for_a_place_in_the_batch_counts_as_queue() -> None:
    full = dataclasses.replace(IDLE, running_requests=8, waiting_requests=3)
    choice = pick(view(worker_record("a", load=full), request_s=4.0), view(worker_record("b")), a=96)
    assert choice.worker.worker_id == "b"
    assert choice.terms[1].queue_s == pytest.approx(4 * 4.0 / 8)


def test_a_worker_without_a_measured_rate_is_given_the_mean_of_the_others() -> None:
    fresh = worker_record("a", load=dataclasses.replace(IDLE, prefill_tokens_per_s=0.0))
    choice = pick(view(fresh), view(queued(0, rate=200.0)))
    assert {term.prefill_s for term in choice.terms} == {0.5}


def chosen(views: list[WorkerView], number: int, ask: RouteRequest = ASK) -> Counter[str]:
    """How often each is chosen for requests of `number` kinds that share nothing."""
    asks = [dataclasses.replace(ask, affinity=Affinity(b"%d" % kind)) for kind in range(number)]
    return Counter(choose(views, {}, each).worker.worker_id for each in asks)


def test_ties_spread_what_shares_nothing_and_keep_together_what_does() -> None:
    views = [view(worker_record(name)) for name in "abc"]
    seen = chosen(views, 300)
    assert set(seen) == {"a", "b", "c"}
    assert min(seen.values()) > 50
    for kind in range(20):
        ask = dataclasses.replace(ASK, affinity=Affinity(b"%d" % kind))
        assert choose(views, {}, ask).worker == choose(views[::-1], {}, ask).worker, "every router takes the same"


def test_where_all_have_its_beginning_the_whole_prompt_decides_where_a_request_goes() -> None:
    views, held = [view(worker_record(name)) for name in "abcd"], {Incarnation(name): 64 for name in "abcd"}
    asks = [dataclasses.replace(ASK, prompt_affinity=Affinity(b"%d" % kind)) for kind in range(200)]
    assert len({choose(views, held, each).worker.worker_id for each in asks}) == 4
    assert len({choose(views, {}, each).worker.worker_id for each in asks}) == 1, (
        "their beginning is to be computed once"
    )


def crowded(name: str, requests: int, recent_tokens: int = 0) -> WorkerRecord:
    load = dataclasses.replace(IDLE, running_requests=requests, recent_prefill_tokens=recent_tokens)
    return worker_record(name, load=load)


def test_of_two_that_cost_the_same_the_one_with_fewer_requests_is_taken() -> None:
    views = [view(crowded("a", 5)), view(crowded("b", 2), pending_requests=1)]
    assert set(chosen(views, 20)) == {"b"}
    assert choose(views, {}, ASK).rule is RouteRule.TIE


def test_of_two_that_cost_the_same_and_have_as_many_requests_the_one_that_computed_less_lately_is_taken() -> None:
    assert set(chosen([view(crowded("a", 2, 100)), view(crowded("b", 2, 99))], 20)) == {"b"}


def test_of_many_that_cost_the_same_two_are_drawn() -> None:
    views = [view(crowded(name, number)) for number, name in enumerate("abcd")]
    seen = chosen(views, 600)
    assert set(seen) == {"a", "b", "c"}, "all but the one with most requests"
    assert seen["a"] > seen["b"] > seen["c"] > 50


def test_costs_within_the_noise_of_the_rates_are_the_same_but_never_where_one_has_more_of_the_prompt() -> None:
    a, b = worker_record("a"), queued(0, rate=1_009.0)
    assert set(chosen([view(a), view(b)], 50)) == {"a", "b"}
    long = dataclasses.replace(ASK, prompt_tokens=400)
    one_more = {Incarnation("a"): 300, Incarnation("b"): 304}
    wide = [view(a), view(worker_record("b"))]
    for kind in range(50):
        ask = dataclasses.replace(long, affinity=Affinity(b"%d" % kind))
        assert choose(wide, one_more, ask).worker.worker_id == "b"


def test_a_match_of_few_tokens_binds_nobody() -> None:
    ask = dataclasses.replace(ASK, prompt_tokens=500)
    busy = queued(60)
    few = pick(view(worker_record("a")), view(busy), ask=ask, b=112)
    assert few.worker.worker_id == "a"
    assert (few.terms[1].matched_tokens, few.terms[1].counted_tokens) == (112, 0)
    assert pick(view(worker_record("a")), view(busy), ask=ask, b=128).worker.worker_id == "b", "a quarter of it counts"


def test_of_a_long_prompt_the_minimum_is_a_number_of_tokens() -> None:
    assert TUNING.minimum_match(400) == 100
    assert TUNING.minimum_match(100_000) == MIN_MATCH_TOKENS


HOT = dataclasses.replace(ASK, prompt_tokens=450, heat=20.0)
"""The first 400 tokens are held by some."""


def test_a_queue_at_the_holder_of_a_hot_prefix_makes_a_copy() -> None:
    holder, idle = view(queued(1_000)), view(worker_record("a"))
    cold = pick(holder, idle, ask=dataclasses.replace(HOT, heat=1.0), b=400)
    assert (cold.worker.worker_id, cold.rule) == ("b", RouteRule.COST)
    hot = pick(holder, idle, ask=HOT, b=400)
    assert (hot.worker.worker_id, hot.rule) == ("a", RouteRule.REPLICATION)
    assert hot.terms[0].recompute_s < cold.terms[1].recompute_s


def test_a_hot_prefix_makes_no_copy_while_nobody_waits() -> None:
    assert pick(view(queued(300)), view(worker_record("a")), ask=HOT, b=400).worker.worker_id == "b"


def test_enough_holders_make_no_further_copy() -> None:
    matched = {Incarnation(name): 400 for name in "bcdefgh"}
    holders = [
        view(dataclasses.replace(queued(2_000), worker_id=WorkerId(name), incarnation=Incarnation(name)))
        for name in "bcdefgh"
    ]
    ask = dataclasses.replace(HOT, heat=8.0)
    few = choose([*holders[:1], view(worker_record("a"))], matched, ask)
    assert few.worker.worker_id == "a"
    many = choose([*holders, view(worker_record("a"))], matched, ask)
    assert many.worker.worker_id != "a"


def test_what_nobody_holds_costs_the_same_whether_hot_or_not() -> None:
    assert (
        pick(view(worker_record("a")), ask=HOT).terms
        == pick(view(worker_record("a")), ask=dataclasses.replace(HOT, heat=0.0)).terms
    )


@pytest.mark.parametrize("dropped", [{"draining": True}, {"model": "other"}, {"max_model_len": 50}, {"num_blocks": 6}])
def test_drops_workers_that_cannot_take_it(dropped: dict[str, object]) -> None:
    unfit = view(worker_record("a", **dropped))  # type: ignore[arg-type]  # a case is one field
    choice = pick(unfit, view(queued(50_000)), a=96)
    assert [term.worker_id for term in choice.terms] == ["b"]


def test_an_excluded_worker_is_not_tried_again() -> None:
    ask = dataclasses.replace(ASK, excluded=frozenset({Incarnation("a")}))
    assert pick(view(worker_record("a")), view(queued(50_000)), ask=ask, a=96).worker.worker_id == "b"


def test_a_suspected_worker_is_the_last_resort() -> None:
    suspected = view(worker_record("a"), suspected=True)
    assert pick(suspected, view(queued(50_000)), a=96).worker.worker_id == "b"
    assert pick(suspected).worker.worker_id == "a"


def test_nobody_left_is_unavailable_not_invalid() -> None:
    with pytest.raises(UnavailableError):
        pick()
    with pytest.raises(UnavailableError):
        pick(view(worker_record("a", draining=True)))


def test_a_prompt_that_fits_nowhere_is_refused_with_the_numbers() -> None:
    ask = dataclasses.replace(ASK, prompt_tokens=600)
    with pytest.raises(InvalidRequestError, match=r"600 tokens.* reads 512 .* cache is 1024; .* up to 511 tokens") as e:
        pick(view(worker_record("a")), ask=ask)
    assert e.value.field == "prompt"


def test_an_answer_that_fits_nowhere_is_refused_with_what_would() -> None:
    ask = dataclasses.replace(ASK, max_tokens=450)
    with pytest.raises(InvalidRequestError, match="at most 412 per sample would fit") as error:
        pick(view(worker_record("a")), ask=ask)
    assert error.value.field == "sampling_params.max_tokens"


def test_too_large_counts_drained_workers_so_that_it_is_not_called_invalid() -> None:
    small, large = worker_record("a", max_model_len=50), worker_record("b", draining=True)
    with pytest.raises(UnavailableError):
        pick(view(small), view(large))


def test_more_samples_than_run_at_once_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at most 8 samples") as error:
        pick(view(worker_record("a")), ask=dataclasses.replace(ASK, num_samples=9))
    assert error.value.field == "sampling_params.n"
