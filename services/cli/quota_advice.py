"""`stemcache quota advise`: what tenants' cache hits would be with more or less room."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from services.cli.connection import add_admin_flags, admin_client
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json, print_table
from services.client.quota_advice import QuotaAdvice, QuotaPoint

FEW_BLOCKS = 1_000
"""Fewer blocks of prompts say little."""

MORE = 1.2
"""The change that is told in words."""

_EPILOG = """Hits are those of least-recently-used eviction, from what the tenant asked for; what was asked for a day
ago counts half. Shares are parts of every worker's blocks on the device: `stemcache tenants quota NAME --min`
sets them."""


@dataclass(frozen=True, slots=True)
class TenantAdvice:
    """Of one tenant, by name."""

    tenant: str
    advice: QuotaAdvice


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("quota", help="advice on what tenants should be guaranteed")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    advise = actions.add_parser("advise", help="what more or less room would bring", epilog=_EPILOG)
    advise.add_argument("tenant", nargs="?", default="", help="name of a tenant (default: all)")
    advise.add_argument("--json", action="store_true", help="print JSON")
    add_admin_flags(advise)
    advise.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    with admin_client(args) as client:
        names = [args.tenant] if args.tenant else [each.name for each in client.list_tenants()]
        found = [TenantAdvice(name, client.advise_quota(name)) for name in names]
    if args.json:
        print_json(found)
        return ExitCode.OK
    for at, each in enumerate(found):
        if at:
            print()
        _print(each.tenant, each.advice)
    return ExitCode.OK


def sentence(advice: QuotaAdvice) -> str:
    """The advice in words."""
    if not advice.asked_blocks:
        return "nothing was asked for lately"
    if not any(each.hit_share for each in advice.points):
        return "nothing that was asked for came again, so no room would bring hits"
    base = advice.base
    larger = [each for each in advice.points if each.share > base.share]
    more = min(larger, key=lambda each: abs(each.share - MORE * base.share), default=None)
    what = "guaranteed" if advice.is_guaranteed else "that it has now"
    parts = [f"hits {base.hit_share:.0%} with the {base.share:.1%} {what}"]
    if more is not None:
        growth = more.share / base.share - 1 if base.share else 0.0
        parts.append(f"with {growth:.0%} more, hits {_points(base, more)}")
    parts.append(f"{advice.enough.share:.1%} of the blocks would bring 95% of what all of them could")
    return "; ".join(parts)


def _print(tenant: str, advice: QuotaAdvice) -> None:
    print(f"{tenant}: {sentence(advice)}")
    if not advice.asked_blocks:
        return
    print(f"(it found {advice.found_share:.0%} with the room that it had, in the order of eviction that is in force)")
    if advice.asked_blocks < FEW_BLOCKS:
        print(f"(only {advice.asked_blocks:.0f} blocks of prompts stand behind this)")
    if advice.num_missing:
        print(f"({advice.num_missing} of {advice.num_missing + advice.num_workers} workers did not answer)")
    rows = [
        (f"{each.share:.1%}", str(each.num_blocks), f"{each.hit_share:.1%}", _points(advice.base, each))
        for each in advice.points
    ]
    print_table(("SHARE", "BLOCKS", "HITS", "POINTS"), rows)


def _points(base: QuotaPoint, other: QuotaPoint) -> str:
    return f"{100 * (other.hit_share - base.hit_share):+.1f} points"
