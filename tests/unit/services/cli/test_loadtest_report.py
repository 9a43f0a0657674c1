"""`stemcache loadtest report` and `compare`, and the flags for what a run should reach, as a user types them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from services.cli.exit_codes import ExitCode
from services.cli.loadtest_checks import add_check_flags, checked
from services.cli.main import main
from tests.support.loadtest_runs import busy_rows, row, slower, write_run_folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    rows = busy_rows(120)
    return write_run_folder(tmp_path / "a", rows), write_run_folder(tmp_path / "b", slower(rows, 0.3))


def test_a_report_is_written_and_named(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", "report", str(runs[0])]) == ExitCode.OK
    assert capsys.readouterr().out.strip() == str(runs[0] / "report.html")
    assert (runs[0] / "report.html").read_text().startswith("<!doctype html>")


def test_runs_are_compared(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", "compare", *map(str, runs)]) == ExitCode.OK
    text = capsys.readouterr().out
    (line,) = [each for each in text.splitlines() if each.startswith("time to first token, p50")]
    assert line.endswith("worse")
    assert "%" in line
    assert "conditions of both runs are the same" in text


def test_they_are_compared_as_json(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", "compare", "--json", *map(str, runs)]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert {"name", "unit", "change", "finding"} <= set(found["deltas"][0])


def test_what_cannot_be_compared_is_refused(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs[1] / "conditions.json").unlink()
    assert main(["loadtest", "compare", *map(str, runs)]) == ExitCode.REFUSED
    assert "no conditions.json" in capsys.readouterr().err
    assert main(["loadtest", "report", str(tmp_path)]) == ExitCode.REFUSED


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_check_flags(parser)
    return parser.parse_args(arguments)


def test_expectations_decide_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(index) for index in range(20)]
    assert checked(parsed(), rows) == ExitCode.OK
    assert checked(parsed("--expect-hit-rate", "60%", "--slo", "ttft:p99:500"), rows) == ExitCode.OK
    assert capsys.readouterr().err == ""
    assert checked(parsed("--expect-hit-rate", "0.99", "--slo", "ttft:p99:20", "--slo", "tpot:p50:99"), rows) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("arguments", [("--slo", "ttft:500"), ("--expect-hit-rate", "60")])
def test_what_cannot_be_read_is_bad_usage(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments)
    assert ended.value.code == ExitCode.USAGE
