"""`stemcache loadtest`: load on a system, by tenants and workloads, and what came of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cache_store.errors import InvalidRequestError
from services.cli.exit_codes import ExitCode
from services.cli.loadtest_checks import add_check_flags, checked
from services.cli.loadtest_flags import add_load_flags, add_workload, rates, whole, wholes
from services.cli.loadtest_gen import generate
from services.cli.loadtest_isolation import add_isolation_flags, run_isolation
from services.cli.loadtest_plan import Load, at_point, loads_of, workload_of
from services.cli.loadtest_report import add_report
from services.cli.loadtest_running import claimed, opened, print_run, result_folder, write_run
from services.cli.output import print_table
from services.loadtest.json_codec import to_json
from services.loadtest.reporting.report import write_report
from services.loadtest.result import Result
from services.loadtest.results_folder import SWEEP, Sweep, SweepPoint, write_document

_RUN = """A run warms the model, takes a partition of the cache that nobody has used, caches the workload's shared
prefixes, sends, and verifies. Every latency counts from when a request was meant to be sent. Ctrl-C ends it early and
still writes everything; a second one ends it at once."""
_HEADINGS = ("POINT", "REQ/S", "TOK/S", "TTFT P50", "P99 MS", "TPOT P50", "P99 MS", "HIT %", "FAILED", "FOLDER")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("loadtest", help="load on a system, and what came of it")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run_parser = actions.add_parser("run", help="one load", description=_RUN)
    add_load_flags(run_parser)
    add_check_flags(run_parser)
    add_isolation_flags(run_parser)
    run_parser.set_defaults(run=run)
    sweep_parser = actions.add_parser("sweep", help="the same load at several rates, or with several concurrencies")
    points = sweep_parser.add_mutually_exclusive_group(required=True)
    points.add_argument("--request-rates", type=rates, metavar="LIST", help="of open loops, such as 1,2,4")
    points.add_argument("--max-concurrencies", type=wholes, metavar="LIST", help="of closed loops, such as 1,4,16")
    add_load_flags(sweep_parser)
    sweep_parser.set_defaults(run=sweep)
    gen_parser = actions.add_parser("gen", help="write a workload as a trace that `run` can send")
    gen_parser.add_argument("file", type=Path, metavar="FILE", help="JSONL to write")
    gen_parser.add_argument("--num-prompts", type=whole, default=1_000, metavar="N", help="requests (default: 1000)")
    gen_parser.add_argument("--request-rate", type=float, default=1.0, metavar="RPS", help="Poisson (default: 1)")
    gen_parser.add_argument("--block-tokens", type=whole, default=16, metavar="N", help="per hash id (default: 16)")
    add_workload(gen_parser)
    gen_parser.set_defaults(run=generate)
    add_report(actions)


def run(args: argparse.Namespace) -> int:
    """One run, or the isolation test.

    The exit status tells of interruption, of a run of which nothing came to its end, and of missed expectations.
    """
    if args.assert_isolation:
        return run_isolation(args)
    loads = loads_of(args)
    with claimed(result_folder(args, workload_of(loads))) as folder, opened(args, loads) as system:
        measured = system.measure(loads)
    print_run(args, folder, measured, write_run(folder, measured, args.percentile_metrics))
    write_report(folder)
    return max(_status(measured.result), checked(args, measured.rows))


def sweep(args: argparse.Namespace) -> int:
    """A run per point, one after the other, each in a partition and a folder of its own."""
    if args.request_rate is not None or args.max_concurrency is not None:
        raise InvalidRequestError("request-rates", "a sweep sets rate or concurrency itself; leave the other flag out")
    loads, points = loads_of(args), _points(args)
    swept = [[_at(load, point) for load in loads] for point in points]
    parent = result_folder(args, "sweep")
    done: list[SweepPoint] = []
    rows: list[tuple[str, ...]] = []
    status = ExitCode.OK
    varied = "request_rate" if args.request_rates else "max_concurrency"
    with opened(args, loads) as system:
        for point, at in zip(points, swept, strict=True):
            folder = parent / point.folder
            folder.mkdir()
            print(f"{varied} {_value(point):g}", file=sys.stderr)
            measured = system.measure(at)
            write_run(folder, measured, args.percentile_metrics)
            done.append(point)
            rows.append(_row(point, measured.result))
            write_document(parent / SWEEP, to_json(Sweep(varied, tuple(done))))
            status = max(status, _status(measured.result))
            if measured.result.interrupted:
                break
    print_table(_HEADINGS, rows)
    write_report(parent)
    print(f"written to {parent}")
    return status


def _points(args: argparse.Namespace) -> list[SweepPoint]:
    if args.request_rates:
        found = [SweepPoint(f"rate-{each:g}", each, None) for each in args.request_rates]
    else:
        found = [SweepPoint(f"concurrency-{each}", None, each) for each in args.max_concurrencies]
    if len({each.folder for each in found}) != len(found):
        raise InvalidRequestError("request-rates", "a point is named twice")
    return found


def _at(load: Load, point: SweepPoint) -> Load:
    return at_point(load, point.request_rate, point.max_concurrency)


def _value(point: SweepPoint) -> float:
    return point.request_rate if point.request_rate is not None else float(point.max_concurrency or 0)


def _row(point: SweepPoint, result: Result) -> tuple[str, ...]:
    ttft, tpot = result.latencies["ttft"], result.latencies["tpot"]
    latencies = (ttft.p(50), ttft.p(99), tpot.p(50), tpot.p(99))
    return (
        f"{_value(point):g}",
        f"{result.request_throughput:.2f}",
        f"{result.output_throughput:.1f}",
        *(f"{each:.1f}" for each in latencies),
        f"{result.prefix_cache.hit_rate * 100:.1f}",
        str(result.failed),
        point.folder,
    )


def _status(result: Result) -> ExitCode:
    if result.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if result.completed else ExitCode.REFUSED
