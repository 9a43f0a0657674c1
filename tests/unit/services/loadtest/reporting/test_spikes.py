"""Each latency spike is named by its cause, out of its own timings."""

from __future__ import annotations

import dataclasses

import pytest

from services.loadtest.records import RequestRow, ServerTimes
from services.loadtest.reporting.spikes import Cause, SpikeKind, spikes
from tests.support.loadtest_runs import busy_rows, row

USUAL = ServerTimes(1e9, route_s=0.002, queue_s=0.008, prefill_s=0.030, decode_s=0.150)


def with_one(spike: RequestRow, count: int = 60) -> list[RequestRow]:
    rows = [row(index) for index in range(count)]
    rows[spike.index] = spike
    return rows


CASES = {
    Cause.CLIENT: {"late_s": 0.5},
    Cause.ROUTER: {"server": dataclasses.replace(USUAL, route_s=0.5)},
    Cause.QUEUE: {"server": dataclasses.replace(USUAL, queue_s=0.5)},
    Cause.PREEMPTED: {"server": dataclasses.replace(USUAL, prefill_s=0.6, preempted_s=0.4, recompute_s=0.1)},
    Cause.RECOMPUTE: {"server": dataclasses.replace(USUAL, prefill_s=0.6, preempted_s=0.1, recompute_s=0.4)},
    Cause.SWAP: {"server": dataclasses.replace(USUAL, queue_s=0.5, swap_s=0.45)},
    Cause.RETRIED: {"attempts": 2, "away_s": 0.6},
    Cause.UNEXPLAINED: {"away_s": 0.6},
    Cause.COMPUTING: {"server": dataclasses.replace(USUAL, prefill_s=0.6)},
}


@pytest.mark.parametrize("cause", CASES)
def test_the_part_that_took_most_of_the_excess_is_the_cause(cause: Cause) -> None:
    (found,) = spikes(with_one(row(17, **CASES[cause])))
    assert (found.cause, found.kind, found.row.index) == (cause, SpikeKind.FIRST_TOKEN, 17)
    assert found.took_s > 0.4
    assert found.usual_s == pytest.approx(0.041)


@pytest.mark.parametrize(("degraded", "cause"), [(False, Cause.LONG_PROMPT), (True, Cause.DEGRADED)])
def test_many_tokens_to_compute_are_a_cause(degraded: bool, cause: Cause) -> None:
    """960 tokens of each prompt are cached, and 64 take 30 ms; here none are."""
    spike = row(9, cached_tokens=0, server=dataclasses.replace(USUAL, prefill_s=0.48), degraded=degraded)
    (found,) = spikes(with_one(spike))
    assert found.cause is cause


def test_a_gap_between_tokens_is_a_spike_of_its_own() -> None:
    gap = (0.041, 0.066, 0.966, 0.991)
    preempted = dataclasses.replace(USUAL, decode_s=0.95, preempted_s=0.8, preemptions=1)
    (found,) = spikes(with_one(row(0, arrivals_s=gap, server=preempted, completion_tokens=4)))
    assert (found.kind, found.cause) == (SpikeKind.BETWEEN_TOKENS, Cause.PREEMPTED)
    (found,) = spikes(with_one(row(0, arrivals_s=gap, completion_tokens=4)))
    assert found.cause is Cause.UNEXPLAINED, "the worker was done after 0.15 s"
    (found,) = spikes(with_one(row(0, arrivals_s=gap, server=dataclasses.replace(USUAL, decode_s=0.95))))
    assert found.cause is Cause.COMPUTING


def test_where_the_server_tells_nothing_the_client_still_does() -> None:
    rows = [row(index, server=None) for index in range(60)]
    rows[5] = row(5, server=None, late_s=0.5)
    (found,) = spikes(rows)
    assert found.cause is Cause.CLIENT


def test_a_steady_run_has_none() -> None:
    assert spikes([row(index) for index in range(100)]) == []
    assert spikes([]) == []
    assert spikes([row(0)]) == []


def test_they_are_few_and_the_worst_come_first() -> None:
    rows = busy_rows(600)
    found = spikes(rows)
    excess = [each.took_s - each.usual_s for each in found]
    assert excess == sorted(excess, reverse=True)
    assert len(found) <= 0.05 * len(rows) + 1


def test_failed_requests_are_none() -> None:
    assert spikes(with_one(row(3, status="UNAVAILABLE", server=dataclasses.replace(USUAL, queue_s=9.0)))) == []


def test_all_of_the_excess_is_told() -> None:
    for found in spikes(busy_rows(300)):
        if found.kind is SpikeKind.FIRST_TOKEN:
            assert list(found.excess_s.values()) == sorted(found.excess_s.values(), reverse=True)
            assert next(iter(found.excess_s)) is found.cause
