"""What the flags of `stemcache loadtest` mean, and what is told where they do not fit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from services.cli.loadtest_plan import Load, at_point, loads_of, plan_of
from services.cli.main import build_parser, main
from services.loadtest.arrivals import Bounds, ClosedLoop, OpenLoop, Ramp, RampKind, TraceTimes
from services.loadtest.results_folder import RESULT, SWEEP
from services.loadtest.run_plan import RunPlan
from services.loadtest.workloads import WorkloadKind

KEY = ["--key", "sc-key"]


def loads(*flags: str) -> list[Load]:
    return loads_of(build_parser().parse_args(["loadtest", "run", *flags]))


def plan(*flags: str) -> RunPlan:
    args = build_parser().parse_args(["loadtest", "run", *KEY, *flags])
    made = loads_of(args)
    return plan_of(args, made, {each.wanted.tenant: "sc-key" for each in made})


@pytest.mark.parametrize(
    ("flags", "arrival", "bounds"),
    [
        ([], OpenLoop(2.0), Bounds(100, None)),
        (["--request-rate", "8", "--burstiness", "0.5"], OpenLoop(8.0, 0.5), Bounds(100, None)),
        (["--request-rate", "inf"], OpenLoop(math.inf), Bounds(100, None)),
        (["--max-concurrency", "4", "--duration", "2m"], ClosedLoop(4), Bounds(None, 120.0)),
        (["--max-concurrency", "4", "--request-rate", "1"], OpenLoop(1.0, max_concurrency=4), Bounds(100, None)),
        (["--workload", "trace", "--trace", "x"], TraceTimes(), Bounds(None, math.inf)),
        (["--num-prompts", "7", "--duration", "3"], OpenLoop(2.0), Bounds(7, 3.0)),
        (
            ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "9"],
            OpenLoop(2.0, 1.0, Ramp(RampKind.LINEAR, 1.0, 9.0)),
            Bounds(100, None),
        ),
    ],
)
def test_arrivals_and_bounds(flags: list[str], arrival: object, bounds: Bounds) -> None:
    load = loads(*KEY, *flags)[0]
    assert (load.arrival, load.bounds) == (arrival, bounds)


def test_names_of_vllm_mean_the_same() -> None:
    flags = "--dataset-name prefix_repetition --prefix-repetition-prefix-len 64 --prefix-repetition-num-prefixes 3"
    spec = loads(*KEY, *flags.split())[0].spec
    assert (spec.kind, spec.prefix_len, spec.num_prefixes) == (WorkloadKind.PREFIX_REPETITION, 64, 3)


@pytest.mark.parametrize("flag", ["--max-concurrency", "--noisy-neighbour"])
def test_more_callers_than_a_process_can_have_are_refused_by_name(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        loads(*KEY, flag, "99999999")
    assert f"argument {flag}: 99999999 is too many; at most 16,384" in capsys.readouterr().err


def test_all_tenants_together_are_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="20,000 callers"):
        loads("--tenants", "2", "--max-concurrency", "10000")
    with pytest.raises(InvalidRequestError, match="num-warmups is 0 or more, at most 16,384"):
        loads(*KEY, "--num-warmups", "99999999")
    with pytest.raises(InvalidRequestError, match="num-prompts is 99999999"):
        loads(*KEY, "--num-prompts", "99999999")


def test_a_number_of_tenants_is_made_under_names_of_their_own() -> None:
    made = loads("--tenants", "3", "--noisy-neighbour", "8")
    assert [each.wanted.tenant for each in made] == ["loadtest-1", "loadtest-2", "loadtest-3", "noisy"]
    assert len({each.wanted.server_name for each in made}) == 4
    assert made[-1].arrival == ClosedLoop(8)
    assert made[-1].spec.kind is WorkloadKind.RANDOM


def test_a_file_goes_before_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "sc-acme")
    (tmp_path / "t.toml").write_text('[acme]\nkey_env = "ACME_KEY"\nrate = 9\nprefix_len = 32\n[globex]\nweight = 3\n')
    acme, globex = loads("--tenants", str(tmp_path / "t.toml"), "--prefix-len", "64", "--request-rate", "5")
    assert (acme.wanted.api_key, acme.arrival, acme.spec.prefix_len) == ("sc-acme", OpenLoop(9.0), 32)
    assert (globex.wanted.api_key, globex.arrival, globex.spec.prefix_len) == ("", OpenLoop(5.0), 64)
    assert globex.wanted.terms.weight == 3.0


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[acme]\nkey_env = "NO_SUCH_KEY"\n')
    with pytest.raises(InvalidRequestError, match="NO_SUCH_KEY is not set"):
        loads("--tenants", str(tmp_path / "t.toml"))


def test_each_run_has_a_partition_that_nobody_has_used() -> None:
    """A repeated seed must never measure a warm cache by accident."""
    first, again = plan("--seed", "7"), plan("--seed", "7")
    assert first.seed == again.seed
    assert first.partition != again.partition
    assert first.partition.startswith("loadtest-")


def test_the_conditions_hold_no_key() -> None:
    made = plan("--goodput", "ttft:500", "tpot:50")
    assert "sc-key" not in str(made.settings)
    assert "sc-key" not in repr(made)
    assert made.settings["request_rate"] is None
    assert made.goodput_ms == {"ttft": 500.0, "tpot": 50.0}


def test_the_main_percentiles_are_always_there() -> None:
    assert plan("--metric-percentiles", "99.9,50").percentiles == (50.0, 95.0, 99.0, 99.9)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--partition", "p"], "--cache-start purge"),
        (["--cache-start", "purge"], "--partition names"),
        (["--num-warmups", "-1"], "0 or more"),
        (["--ramp-up-strategy", "linear"], "together"),
        (["--tenants", "99"], "1 to 64"),
        (["--range-ratio", "2"], "below 1"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: list[str], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        plan(*flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--request-rate", "0"],
        ["--goodput", "itl:5"],
        ["--percentile-metrics", "what"],
        ["--metric-percentiles", "100"],
        ["--workload", "what"],
        ["--max-concurrency", "0"],
    ],
)
def test_values_that_are_none_are_bad_usage(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["loadtest", "run", *flags])
    assert ended.value.code == 2
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["run", "--target", "openai"], "needs a URL"),
        (["run", "--target", "openai", "localhost"], "is no URL"),
        (["run", "--target", "what"], "write stemcache, or openai URL"),
        (["run", "--data-dir", "/nowhere"], "give --key"),
        (["sweep", "--request-rates", "1,1", *KEY], "named twice"),
        (["sweep", "--request-rates", "1", "--max-concurrency", "2", *KEY], "leave the other flag out"),
        (["gen", "x.jsonl", "--workload", "trace"], "a trace is there already"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", *flags]) == 1
    assert told in capsys.readouterr().err


def test_points_of_a_sweep_change_the_rate_or_the_callers() -> None:
    load = loads(*KEY)[0]
    assert at_point(load, 4.0, None).arrival == OpenLoop(4.0)
    assert at_point(load, None, 3).arrival == ClosedLoop(3)
    with pytest.raises(InvalidRequestError):
        at_point(loads(*KEY, "--workload", "trace")[0], 4.0, None)


NOWHERE = ["loadtest", "run", "--target", "openai", "http://127.0.0.1:9", "--tokenizer", "/nowhere"]


@pytest.mark.parametrize("made", ["run", "sweep", "file"])
def test_a_folder_that_cannot_be_taken_is_refused_before_anything_is_sent(
    tmp_path: Path, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    if made == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        (folder / {"run": RESULT, "sweep": SWEEP}[made]).write_text("{}")
    assert main([*NOWHERE, "--result-dir", str(folder)]) == 1
    assert f"{folder} {'cannot be written' if made == 'file' else 'holds a run'}" in capsys.readouterr().err


def test_a_run_of_which_nothing_came_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NOWHERE, "--result-dir", str(tmp_path / "runs")]) == 1
    assert "tokenizer.json" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("label", ["../../x", "a/b", "a b", "x" * 65])
def test_a_label_is_no_path(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loads(*KEY, "--label", label)
    assert "is no label" in capsys.readouterr().err
