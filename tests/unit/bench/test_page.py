"""The page of benchmarks: made of results only, and whatever is lacking or doubtful is named in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bench.page.catalogue import BENCHES, Bench
from tests.bench.page.render import PAGE, render
from tests.bench.page.results import FOLDER, Result, ResultError, condense, read_folder, read_result

ROUTER = next(bench for bench in BENCHES if bench.name == "router")
REPLAY = next(bench for bench in BENCHES if bench.name == "replay")
POOL = next(bench for bench in BENCHES if bench.name == "pool")
MACHINE = {
    "time": "2030-01-02T03:04:05+00:00",
    "cpu": "Abacus",
    "cores": 2,
    "memory_gib": 8.0,
    "load": [0.1, 0.2, 0.3],
    "python": "3.11.0",
    "kernel": "6.1",
    "commit": "0123456789abcdef",
    "commit_number": 100,
    "changed_files": 0,
}


def side(p50_ms: float, rate: float, cpu_rate: float | None) -> dict[str, float | None]:
    """Of a way to the worker."""
    loaded = {"loaded_p50_ms": 1.0, "loaded_p99_ms": 9.0, "loaded_rate": rate, "loaded_cpu_rate": cpu_rate}
    return {"p50_ms": p50_ms, "p99_ms": 2 * p50_ms, "cpu_rate": cpu_rate, **loaded}


def document(**changes: Any) -> dict[str, Any]:
    """What the router's benchmark might have written."""
    sides = {
        "straight to the worker": side(4.0, 300.0, None),
        "one plain grpc.aio hop": side(6.0, 280.0, 600.0),
        "stemcache's router": side(7.0, 260.0, 1234.5678),
        "straight to a worker that speaks HTTP": side(0.1, 9_000.0, None),
        "smg 1.13.0": side(0.6, 3_000.0, 4_000.0),
    }
    return {
        "command": "python -m tests.bench.router --calls 300",
        "took_s": 54.3,
        "before": MACHINE,
        "after": MACHINE | {"load": [1.0, 0.5, 0.3]},
        "versions": {"grpcio": "1.2.3"},
        "peers": {"smg": "1.13.0", "sglang-router": "not run: not installed (`make bench-peers`)"},
        "settings": {"calls": 300, "rounds": 3, "calls_per_round": 1_000},
        "figures": {"concurrency": 32, "sides": sides},
        "raw": {"a sample": 0.123456789},
    } | changes


def result(**changes: Any) -> Result:
    return read_result(condense(json.dumps(document(**changes))))


def page(*benches: Bench, **results: Result) -> str:
    return render(results, benches)


def test_a_table_is_made_of_a_result_with_its_conditions() -> None:
    text = page(ROUTER, router=result())
    assert "| stemcache's router | 7.00 | 14.0 | 3.00 | 6.00 | 1,235 | 260 | 1,235 | 9.00 |" in text
    assert "| smg 1.13.0 | 0.600 | 1.20 | 0.500 | 1.00 | 4,000 | 3,000 | 4,000 | 9.00 |" in text, (
        "by its own straight way"
    )
    assert "The router's added p50 by one plain hop's: 1.50 (≤ 2: reached)" in text
    for told in (
        "`python -m tests.bench.router --calls 300`",
        "`make bench-all OPTIONS='--only router'`",
        "2030-01-02 03:04 UTC, 54 s; commit `0123456789ab`",
        "2 cores Abacus, 8 GiB, Linux 6.1, Python 3.11.0; load average 0.1, 0.2, 0.3 before, 1, 0.5, 0.3 after",
        "Repeats: 300 calls one after the other, 3 rounds of 1000 calls at once",
        "Versions: grpcio 1.2.3",
        "smg 1.13.0",
    ):
        assert told in text


def test_what_is_missed_is_said() -> None:
    slow = document()["figures"]
    slow["sides"]["stemcache's router"] = side(9.0, 100.0, 50.0)
    text = page(ROUTER, router=result(figures=slow))
    assert "2.50 (≤ 2: **not reached**)" in text
    assert "0.357 (≥ 0.5: **not reached**)" in text


def test_a_result_that_is_not_there_is_named_twice() -> None:
    text = page(ROUTER, POOL, router=result())
    assert f"* {POOL.title}: no result" in text
    assert "**No result.** `make bench-all OPTIONS='--only pool'` makes it." in text


def test_a_peer_that_was_not_run_is_named_in_summary_table_and_conditions() -> None:
    text = page(ROUTER, router=result())
    assert text.count("sglang-router not run: not installed") == 2
    assert "| sglang-router: not run: not installed (`make bench-peers`) | not run |" in text
    assert "Nothing." in page(ROUTER, router=result(peers={"smg": "1.13.0"}))


@pytest.mark.parametrize(
    ("before", "mark"),
    [
        (MACHINE | {"commit_number": 93}, "older code, measured 7 commits before the newest result of this page"),
        (MACHINE | {"changed_files": 2}, "measured with 2 files that were not committed"),
        (MACHINE | {"load": [1.5, 0.1, 0.1]}, "the machine was busy when it began (load average 1.5)"),
    ],
)
def test_what_makes_a_result_doubtful_is_marked(before: dict[str, Any], mark: str) -> None:
    figures = {"num_blocks": 512, "hashing_us": 70.0, "rows": []}
    newest = result(figures=figures, peers={}, settings={"rounds": 10})
    text = page(ROUTER, POOL, router=result(before=before), pool=newest)
    assert f"* {ROUTER.title}: {mark}" in text
    assert f"* **{mark[0].upper()}{mark[1:]}**" in text
    assert mark not in page(ROUTER, POOL, router=result(), pool=newest)


def test_a_load_that_was_left_out_is_named() -> None:
    report = {"policy": "lru", "capacity_share": 0.0499, "hit_rate": 0.2, "references_per_s": 3e5}
    figures = {"device": {"conversation": [report]}, "host": {"conversation": [report]}, "host_factor": 4}
    text = page(REPLAY, replay=result(figures=figures, peers={}))
    assert "| conversation, least recently used | 20.0 % | 0.300 |" in text
    assert "**not run: agents**" in text


def test_samples_are_not_kept_and_numbers_are_short() -> None:
    kept = condense(json.dumps(document()))
    assert "a sample" not in kept
    assert "1234.57" in kept
    assert condense(kept) == kept


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps(document(before={}))])
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(ResultError):
        read_result(text)


def test_a_result_of_no_benchmark_is_refused() -> None:
    with pytest.raises(ResultError, match="no benchmark weather"):
        page(ROUTER, weather=result())


def test_the_page_in_the_repository_is_made_of_the_results_in_it() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(read_folder(FOLDER)), "run: python -m tests.bench.page"
    for path in FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert condense(text) == text, f"{path} was changed by hand"
