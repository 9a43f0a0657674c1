"""Quota and limits of a tenant on the command line: flags, and how they are shown."""

from __future__ import annotations

import argparse
import re

from services.cli.output import print_table
from services.client.admin_requests import TenantTerms
from services.client.admin_results import Tenant, TierShare

HEADINGS = ("GUARANTEED", "MAX", "WEIGHT", "REQUESTS", "TOKENS/S")
"""Of `cells`."""

NO_LIMIT = "none"
MAX_LIMIT = (1 << 32) - 1


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is to be set."""
    group = parser.add_argument_group("quota and limits", "Shares are parts of every worker's blocks: 25% or 0.25.")
    group.add_argument("--tier", default="device", help="tier of --min, --max and --strict (default: device)")
    group.add_argument("--min", type=share, help="guaranteed share: never taken for another tenant")
    group.add_argument("--max", type=share, help="largest share")
    group.add_argument("--strict", type=share, metavar="SHARE", help="min and max at once: never lent from or to")
    group.add_argument("--weight", type=float, help="part of what is lent, relative to other tenants (usual: 1)")
    group.add_argument("--max-pinned", type=share, help="share that pins may keep (usual: 10%%)")
    group.add_argument("--audit-share", type=share, help="share of its cache hits that is checked (usual: 0.1%%)")
    group.add_argument("--requests-in-flight", type=limit, metavar="N", help="requests at once, or `none`")
    group.add_argument("--tokens-per-s", type=limit, metavar="N", help="tokens computed per second, or `none`")


def terms_of(args: argparse.Namespace) -> TenantTerms:
    """What the flags say. Raises ValueError for flags that contradict each other."""
    low, high = args.min, args.max
    if args.strict is not None:
        if low is not None or high is not None:
            raise ValueError("--strict sets min and max at once; leave --min and --max out, or --strict")
        low = high = args.strict
    named = low is not None or high is not None
    return TenantTerms(
        tier=args.tier if named else "device",
        min=low,
        max=high,
        weight=args.weight,
        max_pinned=args.max_pinned,
        audit_share=args.audit_share,
        requests_in_flight=args.requests_in_flight,
        tokens_per_s=args.tokens_per_s,
    )


def share(text: str) -> float:
    """A part of a whole, as `25%` or `0.25`."""
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write 25% or 0.25") from None
    value = value / 100 if number != text.strip() else value
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no part of a whole; write 0% to 100%, or 0 to 1")
    return value


def limit(text: str) -> int:
    """A whole number; 0 for `none`."""
    if text.strip().lower() == NO_LIMIT:
        return 0
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()) or not 1 <= int(text) <= MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is no limit; write a number from 1 to {MAX_LIMIT}, or `{NO_LIMIT}`")
    return int(text)


def cells(tenant: Tenant) -> tuple[str, ...]:
    """A tenant's quota and limits in a table under HEADINGS."""
    tiers = tenant.quota.tiers
    return (
        "; ".join(_guarantee(each, tiers) for each in tiers),
        "; ".join(_name(each, tiers) + percent(each.max) for each in tiers),
        f"{tenant.quota.weight:g}",
        _limit_text(tenant.limits.requests_in_flight),
        _limit_text(tenant.limits.tokens_per_s),
    )


def print_quota(tenant: Tenant) -> None:
    """Everything about one tenant's quota and limits."""
    rows = []
    for each in tenant.quota.tiers:
        rows += [(f"{each.tier}: guaranteed", _guarantee(each, (each,))), (f"{each.tier}: max", percent(each.max))]
    rows += [
        ("weight", f"{tenant.quota.weight:g}"),
        ("max pinned", percent(tenant.quota.max_pinned)),
        ("hits audited", percent(tenant.quota.audit_share)),
        ("requests in flight", _limit_text(tenant.limits.requests_in_flight)),
        ("tokens per second", _limit_text(tenant.limits.tokens_per_s)),
    ]
    print_table(("TENANT", tenant.name), rows)


def percent(value: float) -> str:
    """A part of a whole for readers."""
    return f"{round(value * 100, 3):g}%"


def _guarantee(each: TierShare, tiers: tuple[TierShare, ...]) -> str:
    text = _name(each, tiers) + percent(each.min)
    if each.min_in_force < each.min:
        return f"{text} ({percent(each.min_in_force)} in force)"
    return f"{text} strict" if each.min == each.max else text


def _name(each: TierShare, tiers: tuple[TierShare, ...]) -> str:
    return f"{each.tier} " if len(tiers) > 1 else ""


def _limit_text(value: int | None) -> str:
    return NO_LIMIT if value is None else str(value)
