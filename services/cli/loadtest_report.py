"""`stemcache loadtest report` and `compare`: a page of a run, and two runs beside each other."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from services.cli.exit_codes import ExitCode
from services.cli.output import print_json, print_table
from services.loadtest.comparing.compare import Delta, compare
from services.loadtest.reporting.report import write_report

_COMPARE = """Says of each metric how much it changed from A to B, with a 95 % bootstrap interval, and under which
conditions the runs differed. Refuses runs that do not tell their conditions, and runs of different workloads."""


def add_report(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds both commands."""
    parser = actions.add_parser("report", help="write report.html and charts into a folder of results")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of a run, a sweep or an isolation test")
    parser.set_defaults(run=report)
    parser = actions.add_parser("compare", help="two runs metric by metric", description=_COMPARE)
    parser.add_argument("first", type=Path, metavar="A", help="folder of a run")
    parser.add_argument("second", type=Path, metavar="B", help="folder of another one")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.set_defaults(run=run_compare)


def report(args: argparse.Namespace) -> int:
    """Writes the page anew."""
    print(write_report(args.folder))
    return ExitCode.OK


def run_compare(args: argparse.Namespace) -> int:
    """Prints the comparison; a change for the worse is no failure of the command."""
    found = compare(args.first, args.second)
    if args.json:
        print_json(found)
        return ExitCode.OK
    print_table(("METRIC", "A", "B", "CHANGE", "95% INTERVAL", ""), [_row(each) for each in found.deltas])
    print()
    if found.differences:
        print_table(("CONDITION", "A", "B"), [(each.what, each.first, each.second) for each in found.differences])
    else:
        print("the conditions of both runs are the same")
    return ExitCode.OK


def _row(delta: Delta) -> tuple[str, ...]:
    if delta.change is None:
        return (delta.name, "–", "–", "–", "–", str(delta.finding))
    change = delta.change
    values = (f"{each:,.3f}{delta.unit if delta.unit == '/s' else ''}" for each in (change.first, change.second))
    if delta.unit == "ms":
        values = (f"{each:,.1f} ms" for each in (change.first, change.second))
    interval = f"{change.low:+.1%} to {'anything' if math.isinf(change.high) else f'{change.high:+.1%}'}"
    return (delta.name, *values, f"{change.ratio:+.1%}", interval, str(delta.finding))
