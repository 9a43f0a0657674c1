"""`stemcache replay`: public traces through the real block pool, without a model, as fast as it can."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.policies.choice import PolicyKind
from cache_store.quota import check_sum
from cache_store.replay.report import Question, RunReport, TenantReport, run
from cache_store.replay.scanner import scanner_beside
from cache_store.replay.schedule import SessionSchedule
from cache_store.replay.simulation import TraceTenant
from cache_store.replay.trace import Trace
from cache_store.replay.trace_files import ReadOptions, read_trace
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json, print_table
from services.cli.replay_spec import TenantSpec, parse_capacity, parse_factors, parse_scanner, parse_share, parse_tenant

MAX_WINDOWS = 10_000
_HEADINGS = ("CAPACITY", "BLOCKS", "POLICY", "TENANT", "REQUESTS", "TOKEN HIT %", "EVICTED", "NOT CACHED", "ISOLATION")
_TIER_HEADINGS = ("CAPACITY", "POLICY", "TIER", "BLOCKS", "TOKEN HIT %", "WRITTEN", "LOADED", "NOT WRITTEN")
_EPILOG = """each TRACE is a tenant: [NAME=]PATH with ,min=25%% ,max=50%% ,weight=2 ,rate=4 (times as fast) and
,sessions=0/5 (the first fifth of its sessions). Formats, plain or .zst: Mooncake JSONL, kv-cache-tester JSONL, Azure
CSV. ISOLATION is hits beside the others / hits alone with the guarantee: in all, and in the worst window of time."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("replay", help="public traces through the real block pool", epilog=_EPILOG)
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="[NAME=]PATH[,min=25%%][,rate=2]...")
    parser.add_argument("--traces", dest="folder", type=Path, default=Path(), help="folder of the paths")
    parser.add_argument(
        "--capacity", action="append", help="5%% of the unique blocks, 8GiB, or 1000 blocks; repeatable"
    )
    parser.add_argument("--kv-bytes-per-token", type=float, default=0.0, help="for capacities in bytes")
    parser.add_argument("--policy", action="append", choices=[*PolicyKind], help="repeatable; default: class")
    parser.add_argument("--host-factor", default="0", help="host pool of that many times the capacity, 4 or 0.5")
    parser.add_argument("--disk-factor", default="0", help="blocks on disk, likewise; needs a host pool")
    parser.add_argument("--oracle", action="store_true", help="also the most that any policy could hit")
    parser.add_argument(
        "--scanner",
        metavar="RATE[,min=25%]".replace("%", "%%"),
        help="a tenant of prompts that never come again, at RATE times the first tenant's blocks per second",
    )
    parser.add_argument("--session-ends", default="0", help="part of the sessions that tell their end, 80%% or 0.8")
    parser.add_argument(
        "--useless-density",
        default="1%",
        help="part of its blocks that a tenant must hit, or its guarantee is lent where it brings nothing; 0: never",
    )
    parser.add_argument("--windows", type=int, default=10, help="parts of the time for the isolation ratio")
    parser.add_argument("--block-tokens", type=int, default=512, help="tokens per block")
    parser.add_argument(
        "--session-every",
        type=float,
        default=13.5,
        help="seconds between the starts of sessions, in traces with times within sessions only",
    )
    parser.add_argument("--session-cut", type=float, default=10_000.0, help="seconds after which those are cut")
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    parser.set_defaults(run=execute)


def execute(args: argparse.Namespace) -> int:
    """Reads the traces, replays them, prints what came of it."""
    tenants = _tenants(args)
    check_sum(tenant.quota for tenant in tenants)
    num_unique = sum(tenant.trace.num_unique_blocks() for tenant in tenants if tenant.name != "scanner")
    if not num_unique:
        raise InvalidRequestError("trace", "the traces have no blocks")
    bytes_per_block = args.kv_bytes_per_token * args.block_tokens
    if not 1 <= args.windows <= MAX_WINDOWS:
        raise InvalidRequestError("windows", f"windows is {args.windows}; it is 1 to {MAX_WINDOWS}")
    capacities = tuple(parse_capacity(text, num_unique, bytes_per_block) for text in args.capacity or ["5%"])
    host_factor, disk_factor = parse_factors(args.host_factor, args.disk_factor, max(capacities))
    question = Question(
        capacities=capacities,
        policies=tuple(PolicyKind(each) for each in args.policy or [PolicyKind.CLASS]),
        session_ends=parse_share("session-ends", args.session_ends),
        num_windows=args.windows,
        useless_density=parse_share("useless-density", args.useless_density),
        with_oracle=args.oracle,
        with_isolation=len(tenants) > 1,
        host_factor=host_factor,
        disk_factor=disk_factor,
    )
    gc.collect()
    gc.freeze()  # millions of blocks that stay: not to be looked through again and again
    reports = run(tenants, question, num_unique)
    if args.json:
        print_json(reports)
    else:
        _print(tenants, reports, num_unique)
    return ExitCode.OK


def _tenants(args: argparse.Namespace) -> list[TraceTenant]:
    specs = [parse_tenant(text) for text in args.traces]
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise InvalidRequestError("trace", "two traces have one name; give them names, like a=PATH b=PATH")
    if args.block_tokens < 1:
        raise InvalidRequestError("block-tokens", f"block-tokens is {args.block_tokens}; it is at least 1")
    options = ReadOptions(args.block_tokens, SessionSchedule(args.session_every, args.session_cut))
    read: dict[Path, Trace] = {}
    tenants = [
        TraceTenant(spec.name, spec.shape(_read(args.folder, spec, options, read)), spec.quota) for spec in specs
    ]
    if args.scanner:
        spec = parse_scanner(args.scanner)
        tenants.append(TraceTenant("scanner", scanner_beside(tenants[0].trace, spec.rate), spec.quota))
    return tenants


def _read(folder: Path, spec: TenantSpec, options: ReadOptions, read: dict[Path, Trace]) -> Trace:
    path = folder / Path(spec.path).expanduser()
    if path not in read:
        try:
            read[path] = read_trace(path, options)
        except OSError as error:
            raise InvalidRequestError("trace", f"{path} cannot be read: {error.strerror}") from error
    return read[path]


def _print(tenants: list[TraceTenant], reports: list[RunReport], num_unique: int) -> None:
    for tenant in tenants:
        trace = tenant.trace
        print(
            f"{tenant.name}: {len(trace.requests)} requests, {trace.num_tokens} prompt tokens, "
            f"{trace.num_references} blocks of {trace.block_tokens} tokens, {trace.duration_s:.0f} s"
        )
    print(f"{num_unique} unique blocks, without a scanner's\n")
    print_table(_HEADINGS, [row for report in reports for row in _rows(report)])
    tiers = [row for report in reports for row in _tier_rows(report)]
    if tiers:
        print()
        print_table(_TIER_HEADINGS, tiers)
    speeds = ", ".join(f"{r.policy} {r.references_per_s / 1e6:.2f} M" for r in reports if r.references_per_s)
    print(f"\nblocks of prompts per second of processor time: {speeds}")


def _rows(report: RunReport) -> list[tuple[str, ...]]:
    head = (f"{report.capacity_share:.2%}", str(report.num_blocks), report.policy)
    rows = [(*head, *_tenant_cells(tenant)) for tenant in report.tenants]
    if len(report.tenants) > 1:
        requests = str(sum(tenant.num_requests for tenant in report.tenants))
        rows.append((*head, "all", requests, f"{report.hit_rate:.2%}"[:-1], "", "", ""))
    return rows


def _tier_rows(report: RunReport) -> list[tuple[str, ...]]:
    """The tiers of one run from the device downwards."""
    if not report.tiers:
        return []
    head = (f"{report.capacity_share:.2%}", report.policy)
    device_rate = report.hit_rate - sum(tier.hit_rate for tier in report.tiers)
    rows: list[tuple[str, ...]] = [(*head, "device", str(report.num_blocks), f"{device_rate:.2%}"[:-1], "", "", "")]
    for tier in report.tiers:
        counts = (tier.written_blocks, tier.loaded_blocks, tier.dropped_blocks)
        rows.append((*head, tier.tier, str(tier.num_blocks), f"{tier.hit_rate:.2%}"[:-1], *map(str, counts)))
    return rows


def _tenant_cells(tenant: TenantReport) -> tuple[str, ...]:
    ratio = tenant.isolation
    return (
        tenant.name,
        str(tenant.num_requests),
        f"{tenant.hit_rate:.2%}"[:-1],
        str(tenant.evicted_blocks),
        str(tenant.dropped_blocks),
        f"{ratio.overall:.3f}, worst {ratio.worst:.3f}" if ratio else "",
    )
