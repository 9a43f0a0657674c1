"""Comparing runs: changes are found where there are some and only there; what may not be compared is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache_store.errors import PreconditionError
from services.loadtest.comparing.bootstrap import change
from services.loadtest.comparing.comparability import check_comparable, differences
from services.loadtest.comparing.compare import Comparison, Delta, Finding, compare
from services.loadtest.conditions import CacheState, Conditions, StatedConditions, TenantConditions
from tests.support.loadtest_runs import busy_rows, conditions, slower, write_run_folder


def mean(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows.mean(axis=-1))


def compared(tmp_path: Path, by_s: float, **second: Any) -> Comparison:
    write_run_folder(tmp_path / "a", busy_rows(300, seed=1))
    rows = slower(busy_rows(300, seed=2), by_s)
    write_run_folder(tmp_path / "b", rows, made_conditions=conditions(**second))
    return compare(tmp_path / "a", tmp_path / "b")


def by_name(found: Comparison) -> Mapping[str, Delta]:
    return {each.name: each for each in found.deltas}


def test_runs_of_one_system_show_no_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, 0.0)
    unsure = [each.finding is Finding.UNSURE for each in found.deltas]
    assert sum(unsure) >= len(unsure) - 2, "one in twenty intervals misses"
    assert found.differences == ()


def test_a_slower_run_is_worse_by_an_interval_around_the_truth(tmp_path: Path) -> None:
    found = by_name(compared(tmp_path, 0.2))
    delta = found["time to first token, p50"]
    assert delta.finding is Finding.WORSE
    assert delta.change is not None
    assert delta.change.low < 0.2 * 1e3 / delta.change.first < delta.change.high
    assert found["hit rate"].finding is Finding.UNSURE


def test_the_other_way_round_it_is_better(tmp_path: Path) -> None:
    compared(tmp_path, 0.2)
    found = by_name(compare(tmp_path / "b", tmp_path / "a"))
    assert found["time to first token, p50"].finding is Finding.BETTER


def test_a_comparison_can_be_repeated(tmp_path: Path) -> None:
    assert compared(tmp_path, 0.05) == compare(tmp_path / "a", tmp_path / "b")


def test_other_conditions_are_named(tmp_path: Path) -> None:
    machine = dataclasses.replace(conditions().machine, cores=64)
    found = compared(tmp_path, 0.0, machine=machine, seed=5, cache_state=CacheState.FRESH)
    assert {each.what: (each.first, each.second) for each in found.differences} == {
        "machine.cores": ("2", "64"),
        "seed": ("0", "5"),
        "cache_state": ("primed", "fresh"),
    }


def test_tenants_may_be_called_otherwise_but_their_quotas_are_named() -> None:
    other = tuple(
        TenantConditions(f"tenant-{at}", 1.0, "shared-prefix", {"prefix_len": 512}, 5.0, None, {"min": "25%"})
        for at in range(2)
    )
    check_comparable(conditions(), conditions(tenants=other))
    found = differences(conditions(), conditions(tenants=other))
    assert [each.what for each in found] == ["tenant 1: quota", "tenant 2: quota"]


LACKING = {
    "batch": {"workers": ()},
    "cache_state": {"cache_state": CacheState.UNKNOWN},
    "concurrency": {"arrival": ""},
    "hardware": {"machine": dataclasses.replace(conditions().machine, cpu="")},
}


@pytest.mark.parametrize("what", LACKING)
def test_runs_without_conditions_are_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(PreconditionError, match=f"second run does not tell .*{what}"):
        compared(tmp_path, 0.0, **LACKING[what])


OPENAI = {"backend": "openai", "workers": (), "is_remote": True}
STATED = StatedConditions(256, "H100", "vllm 0.11.0")


def other_server(**changes: Any) -> Conditions:
    return conditions(**(OPENAI | {"stated": STATED} | changes))


def test_runs_of_a_server_that_tells_nothing_are_compared_by_what_is_stated() -> None:
    other = dataclasses.replace(STATED, max_num_sequences=64)
    check_comparable(other_server(), other_server(stated=other))
    found = differences(other_server(), other_server(stated=other))
    assert [(each.what, each.first, each.second) for each in found] == [("stated.max_num_sequences", "256", "64")]


def test_another_server_is_compared_with_ours() -> None:
    check_comparable(conditions(), other_server())
    assert "backend" in {each.what for each in differences(conditions(), other_server())}


def test_a_server_on_the_clients_machine_needs_no_word_on_its_hardware() -> None:
    here = other_server(is_remote=False, stated=StatedConditions(256, "", ""))
    check_comparable(here, here)


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({"stated": None}, r"batch limit \(max_num_seqs\) and its hardware"),
        ({"stated": dataclasses.replace(STATED, max_num_sequences=0)}, r"batch limit \(max_num_seqs\);"),
        ({"stated": dataclasses.replace(STATED, hardware="")}, r"hardware \(machine\);"),
        ({"stated": None, "is_remote": False}, r"batch limit \(max_num_seqs\);"),
        ({"cache_state": CacheState.UNKNOWN}, r"\(cache_state\);"),
    ],
)
def test_a_server_is_refused_by_what_nobody_stated(changes: dict[str, Any], lacking: str) -> None:
    with pytest.raises(PreconditionError, match=rf"second run does not tell .*{lacking}.*--server-max-num-seqs"):
        check_comparable(other_server(), other_server(**changes))


def test_a_folder_without_conditions_is_refused(tmp_path: Path) -> None:
    compared(tmp_path, 0.0)
    (tmp_path / "a" / "conditions.json").unlink()
    with pytest.raises(PreconditionError, match=r"no conditions\.json"):
        compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    "changes", [{"workload": "random"}, {"parameters": {"prefix_len": 4_096}}], ids=["kind", "parameters"]
)
def test_other_workloads_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    tenants = tuple(dataclasses.replace(each, **changes) for each in conditions().tenants)
    with pytest.raises(PreconditionError, match=r"different workloads.*run both with the same"):
        compared(tmp_path, 0.0, tenants=tenants)


def test_a_sweep_is_refused_with_what_would_work(tmp_path: Path) -> None:
    compared(tmp_path, 0.0)
    (tmp_path / "a" / "sweep.json").write_text("{}")
    with pytest.raises(PreconditionError, match="points one by one"):
        compare(tmp_path / "a", tmp_path / "b")


def test_intervals_hold_what_they_promise() -> None:
    """Of 200 pairs of samples, the interval of the ratio of means holds the true one in about 95 of 100."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        found = change(rng.gamma(4, 1, 150), rng.gamma(4, 1.3, 150), mean, rng)
        assert found is not None
        held += found.low < 0.3 < found.high
    assert 180 <= held <= 199


def test_neighbours_that_are_alike_make_intervals_wider() -> None:
    rng = np.random.default_rng(4)
    steps = np.repeat(rng.gamma(4, 1, 40), 10)
    mixed = rng.permutation(steps)
    widths = []
    for rows in (steps, mixed):
        found = change(rows, rows, mean, np.random.default_rng(5))
        assert found is not None
        widths.append(found.high - found.low)
    assert widths[0] > 1.5 * widths[1]


def test_nothing_can_be_said_of_nothing() -> None:
    rng = np.random.default_rng(6)
    assert change(np.zeros(0), np.ones(3), mean, rng) is None
    assert change(np.zeros(3), np.ones(3), mean, rng) is None


@pytest.mark.filterwarnings("error")
def test_a_sample_of_which_nothing_is_left_bounds_nothing() -> None:
    once = np.array([1.0] + [0.0] * 29)
    found = change(once, once, mean, np.random.default_rng(1))
    assert found is not None
    assert (found.ratio, found.low, found.high) == (0.0, -1.0, math.inf)
    assert not found.is_sure


@pytest.mark.filterwarnings("error")
def test_a_run_of_one_request_is_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run_folder(tmp_path / name, [dataclasses.replace(busy_rows(1, seed=1)[0], cached_tokens=0)])
    found = by_name(compare(tmp_path / "a", tmp_path / "b"))
    assert found["hit rate"].finding is Finding.NOUGHT
    assert found["requests per second"].finding is Finding.UNSURE
