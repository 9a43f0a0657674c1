"""`stemcache usage`: what tenants have used; by a tenant's key, what that tenant has used."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from services.cli.connection import add_admin_flags, admin_client, tenant_client
from services.cli.exit_codes import ExitCode
from services.cli.output import date_text, print_json, print_table
from services.cli.times import point_in_time
from services.client.usage_results import EvictionCounts, TenantUsage, UsageCounts, UsageReport

_COUNTS = ("REQUESTS", "OK", "PROMPT", "CACHED", "COMPUTED", "GENERATED", "SAVED", "BLOCK HOURS", "EVICTED")
_HEADINGS = ("TENANT", *_COUNTS)
_EPILOG = """Tokens count where an answer began, once, whatever became of workers. Hours are those of UTC; 35 days are
kept. SAVED are seconds of prefill: reused tokens by the speed measured at the worker that reused them. EVICTED are
blocks: all, those that made room for others, and others' that made room for it."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("usage", help="what tenants have used", epilog=_EPILOG)
    add_admin_flags(parser)
    parser.add_argument("--tenant", default="", metavar="NAME", help="that one only (default: all)")
    parser.add_argument("--since", type=point_in_time, metavar="TIME", help="2h, 7d, 2030-01-31 or 2030-01-31T10:00Z")
    parser.add_argument("--until", type=point_in_time, metavar="TIME", help="the same; default: now")
    parser.add_argument("--by-hour", action="store_true", help="each hour, not only the sums")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--csv", action="store_true", help="print CSV")
    forms.add_argument("--json", action="store_true", help="print JSON")
    own = parser.add_argument_group("as a tenant", "With --own the tenant whose key it is asks for what it has used.")
    own.add_argument("--own", action="store_true", help="by the API key: STEMCACHE_API_KEY, --key or --key-file")
    own.add_argument("--address", metavar="HOST:PORT", help="where the API listens (default: the running system's)")
    keys = own.add_mutually_exclusive_group()
    keys.add_argument("--key", help="API key (default: STEMCACHE_API_KEY)")
    keys.add_argument("--key-file", type=Path, metavar="FILE", help="file that holds the API key")
    parser.set_defaults(run=run, timeout=60.0)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    now_s = time.time()
    since = None if args.since is None else args.since.unix_s(now_s)
    until = None if args.until is None else args.until.unix_s(now_s)
    if args.own:
        if args.tenant:
            raise ValueError("--own asks for the tenant of the key; leave --tenant out")
        with tenant_client(args) as client:
            own = client.usage(since, until)
        report = UsageReport((own,), own.counts, None)
    elif args.key or args.key_file or args.address:
        raise ValueError("--key, --key-file and --address are of a tenant that asks for its own; add --own")
    else:
        with admin_client(args) as admin:
            report = admin.usage(args.tenant, since, until)
    if args.json:
        print_json(report)
    elif args.csv:
        _print_csv(report, args.by_hour)
    else:
        _print(report, args.by_hour)
    return ExitCode.OK


def _print(report: UsageReport, by_hour: bool) -> None:
    if not report.tenants or not any(each.hours for each in report.tenants):
        print("nothing was used in that time")
        return
    rows = [_row(each.tenant or "this tenant", each.counts, each.evictions) for each in report.tenants]
    if len(rows) > 1:
        rows.append(_row("all", report.total, report.total_evictions))
    print_table(_HEADINGS, rows)
    for each in report.tenants if by_hour else ():
        print(f"\n{each.tenant or 'this tenant'}")
        hours = [_row(date_text(hour.start_unix_s), hour.counts, hour.evictions) for hour in each.hours]
        print_table(("HOUR", *_COUNTS), hours)


def _row(name: str, counts: UsageCounts, evictions: EvictionCounts | None) -> tuple[str, ...]:
    blocks_h = (counts.device_block_s + counts.host_block_s + counts.disk_block_s) / 3_600
    share = counts.cached_tokens / counts.prompt_tokens if counts.prompt_tokens else 0.0
    return (
        name,
        str(counts.num_requests),
        str(counts.completed_requests),
        str(counts.prompt_tokens),
        f"{counts.cached_tokens} ({share:.0%})",
        str(counts.computed_tokens),
        str(counts.generated_tokens),
        f"{counts.saved_s:.1f} s",
        f"{blocks_h:.1f}",
        _evictions(evictions),
    )


def _evictions(counts: EvictionCounts | None) -> str:
    if counts is None:
        return "-"
    return f"{counts.evicted_blocks} (for others {counts.suffered_blocks}, others' {counts.caused_blocks})"


def _print_csv(report: UsageReport, by_hour: bool) -> None:
    records = [record for each in report.tenants for record in _records(each, by_hour)]
    if not records:
        return
    writer = csv.DictWriter(sys.stdout, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def _records(usage: TenantUsage, by_hour: bool) -> Iterator[dict[str, object]]:
    if not by_hour:
        yield _record(usage.tenant, "", usage.counts, usage.evictions)
        return
    for hour in usage.hours:
        yield _record(usage.tenant, date_text(hour.start_unix_s), hour.counts, hour.evictions)


def _record(tenant: str, hour: str, counts: UsageCounts, evictions: EvictionCounts | None) -> dict[str, object]:
    record = {"tenant": tenant, "hour": hour} | asdict(counts)
    tiers = record.pop("cached_by_tier")
    record |= {f"cached_{name}": number for name, number in tiers.items()}
    return record | (asdict(evictions) if evictions is not None else {})
