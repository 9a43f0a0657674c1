"""The benchmark of routing rules at small sizes: rules behave as they are known to, and a run is repeatable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.cluster.__main__ import FETCHING, POOLED, POOLED_LRU, Case, make_case, report, run_case, sweep_rules
from tests.bench.cluster.loads import hot_load
from tests.bench.cluster.rules import GREEDY, OURS, RULES
from tests.bench.cluster.simulation import Cluster, Outcome


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case(hot_load(seconds=10.0), 4, 0.6)


@pytest.fixture(scope="module")
def outcomes(case: Case) -> dict[str, Outcome]:
    return run_case(case, RULES, 10.0)


def test_every_request_is_answered_and_counted_once(case: Case, outcomes: dict[str, Outcome]) -> None:
    assert set(outcomes) == {POOLED, POOLED_LRU, FETCHING, *RULES}
    for outcome in outcomes.values():
        assert outcome.prompt_tokens == case.load.trace.num_tokens
        assert len(outcome.ttft_s) == len(case.load.trace.requests)
        assert sum(outcome.prefilled.values()) == outcome.prompt_tokens - outcome.hit_tokens
    report(case, outcomes)


def test_the_longest_prefix_alone_pins_a_worker_and_ours_does_not(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["longest prefix"].imbalance > outcomes[OURS].imbalance
    assert max(outcomes["longest prefix"].ttft_s) > max(outcomes[OURS].ttft_s)


def test_fetching_computes_less_and_counts_it_as_hit(outcomes: dict[str, Outcome]) -> None:
    assert outcomes[FETCHING].hit_tokens > outcomes[OURS].hit_tokens


def test_ours_keeps_more_hits_than_rules_that_do_not_look(outcomes: dict[str, Outcome]) -> None:
    assert outcomes[OURS].hit_tokens >= outcomes["random"].hit_tokens


def test_a_run_is_repeatable(case: Case) -> None:
    first, second = (Cluster(4, case.size, RULES[OURS]).run(case.load.trace) for _ in range(2))
    assert first == second


def test_a_sweep_has_ours_beside_other_numbers(case: Case) -> None:
    small = replace(
        case, load=replace(case.load, trace=replace(case.load.trace, requests=case.load.trace.requests[:20]))
    )
    outcomes = run_case(small, sweep_rules((0, 5), (512,)), 10.0)
    assert {GREEDY, OURS, "weight 5", "match 512", "no replication"} <= set(outcomes)
