"""`stemcache loadtest run --assert-isolation`: do two tenants notice what the other has cached?"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop

from cache_store.errors import InvalidRequestError
from services.cli.connection import reach_of
from services.cli.durations import some_seconds
from services.cli.exit_codes import ExitCode
from services.cli.loadtest_plan import loads_of
from services.cli.loadtest_running import opened, result_folder
from services.loadtest.isolation.assertion import Assertion, Listeners, Wanted, assert_isolation
from services.loadtest.isolation.client_prober import client_prober
from services.loadtest.isolation.power import ROUGH_LIMIT, STANDARD_LIMIT, THOROUGH_LIMIT
from services.loadtest.isolation.record import ISOLATION, IsolationRecord, record_of, write_isolation
from services.loadtest.isolation.samples import Party, Variant
from services.loadtest.isolation.verdict import Outcome
from services.loadtest.reporting.report import write_report

_STATUS = {Outcome.PASSED: ExitCode.OK, Outcome.LEAK: ExitCode.REFUSED, Outcome.BLIND: ExitCode.UNDECIDED}
_HELP = """In place of a load: two tenants send random prompts, first one at a time, then both at once. Exit status 0:
they tell their own repeats from first requests, and neither can tell what the other has cached; 1: a leak; 4: they
cannot tell their own either, for example because caching is off."""


def add_isolation_flags(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    group = parser.add_argument_group("isolation test", _HELP)
    group.add_argument("--assert-isolation", action="store_true", help="test whether tenants are isolated")
    limits = group.add_mutually_exclusive_group()
    limits.add_argument(
        "--thorough",
        dest="auc_limits",
        action="store_const",
        const=(THOROUGH_LIMIT,),
        default=(STANDARD_LIMIT, ROUGH_LIMIT),
        help=f"bound the AUC below {THOROUGH_LIMIT:g}, however long that takes",
    )
    limits.add_argument(
        "--auc-limit",
        dest="auc_limits",
        type=_limit,
        metavar="AUC",
        help=f"bound of the AUC (default: {STANDARD_LIMIT:g} where that is done --within, else {ROUGH_LIMIT:g})",
    )
    group.add_argument(
        "--within", type=some_seconds, default=420.0, metavar="TIME", help="what the test may take, about (default: 7m)"
    )


def run_isolation(args: argparse.Namespace) -> int:
    """The test, its record and its page. The exit status tells the outcome."""
    if args.target != ["stemcache"]:
        raise InvalidRequestError("target", "the isolation test calls our own API; leave --target out")
    if not args.tenants:
        if args.key or args.key_file:
            raise InvalidRequestError("tenants", "the isolation test needs two tenants: a file with --tenants, or none")
        args.tenants = "2"
    loads = loads_of(args)[:2]
    if len(loads) < len(Party):
        raise InvalidRequestError("tenants", "the isolation test needs two tenants; name a second one")
    folder = result_folder(args, "isolation")
    if (folder / ISOLATION).exists():
        raise InvalidRequestError("result-dir", f"{folder} holds an isolation test; name another folder")
    with opened(args, loads) as system:
        names = [each.wanted.tenant for each in loads]
        keys = {party: system.keys[name] for party, name in zip(Party, names, strict=True)}
        record: IsolationRecord = uvloop.run(_asserted(args, keys))
    write_isolation(folder, record)
    _print(record, write_report(folder))
    return _STATUS[record.outcome]


async def _asserted(args: argparse.Namespace, keys: Mapping[Party, str]) -> IsolationRecord:
    reach = reach_of(args)
    wanted = Wanted(args.auc_limits, args.within, tuple(Variant), secrets.randbits(48))
    async with client_prober(reach.address, keys, args.model, reach.trust) as (prober, card):
        listeners = Listeners(lambda line: print(line, flush=True), _progress)
        found: Assertion = await assert_isolation(prober, card.vocab_size, card.max_model_len - 1, wanted, listeners)
    return record_of(found, card.name)


def _progress(variant: Variant, done: int, of: int) -> None:
    """One line that is written over, where somebody looks at it."""
    if sys.stderr.isatty():
        print(f"\r{variant}: {done:,} of {of:,} rounds", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _print(record: IsolationRecord, page: Path) -> None:
    for each in record.variants:
        print(f"{each.variant}: {each.outcome} ({each.reason})")
        if each.own_auc_by_time is not None and each.across_auc is not None:
            print(
                f"  own repeats: AUC {each.own_auc_by_time:.4f} by time, {each.own_auc_by_tokens:.4f} by tokens; "
                f"across tenants: {each.across_auc:.4f}, at most {each.across_bound:.4f}; "
                f"{each.leaked_tokens:,} cached tokens of others"
            )
    print(f"isolation: {record.outcome}{f' ({record.reason})' if record.reason else ''}")
    print(f"written to {page.parent}: {page.name}")


def _limit(text: str) -> tuple[float]:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 < value < 1.0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bound of an AUC: above 0.5, where nothing can be told, below 1"
        )
    return (value,)
