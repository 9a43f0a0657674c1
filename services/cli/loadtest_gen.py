"""`stemcache loadtest gen`: a workload as a trace file. Needs no system: tokens are numbers in a trace."""

from __future__ import annotations

import argparse

from cache_store.errors import InvalidRequestError
from services.cli.exit_codes import ExitCode
from services.cli.loadtest_plan import spec_of
from services.loadtest.arrivals import Bounds, OpenLoop, arrival_times
from services.loadtest.schedules import bounded
from services.loadtest.tenants_file import TenantEntry
from services.loadtest.token_source import TokenSource, stable_rng
from services.loadtest.trace_writer import trace_lines
from services.loadtest.workloads import ModelRoom, WorkloadKind, build

_ALPHABET = range(256, 4_352)
_ANY_LEN = 1 << 24


def generate(args: argparse.Namespace) -> int:
    """Writes the file. Refuses one that is there."""
    if args.file.exists():
        raise InvalidRequestError("file", f"{args.file} is there already; name another file, or remove it")
    spec = spec_of(args, TenantEntry("gen"))
    if spec.kind is WorkloadKind.TRACE:
        raise InvalidRequestError("workload", "`gen` writes a synthetic workload; a trace is there already")
    bounds = Bounds(args.num_prompts, None)
    open_loop = OpenLoop(args.request_rate)
    tokens = TokenSource(_ALPHABET, args.seed, "gen")
    workload = build(spec, tokens, ModelRoom(_ANY_LEN, args.pool_tokens), stable_rng("lengths", args.seed, "gen"))
    times = arrival_times(open_loop, bounds, workload.requests_per_session, stable_rng("arrivals", args.seed, "gen"))
    timed = zip(times, bounded(workload.sessions, bounds), strict=False)
    answers = TokenSource(_ALPHABET, args.seed, "answers")
    lines = sorted(trace_lines(timed, answers, args.block_tokens), key=lambda each: each[0])
    with args.file.open("x", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for _, line in lines)
    print(f"{len(lines)} requests, {lines[-1][0]:.0f} s: {args.file}")
    print(f"send it: stemcache loadtest run --workload trace --trace {args.file}")
    return ExitCode.OK
