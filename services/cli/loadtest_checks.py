"""`--expect-hit-rate` and `--slo` of `stemcache loadtest run`: whether a run reached what was expected of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cache_store.errors import InvalidRequestError
from services.cli.exit_codes import ExitCode
from services.loadtest.records import RequestRow
from services.loadtest.reporting.expectations import Expectations, Slo, missed, parse_share, parse_slo


def add_check_flags(parser: argparse.ArgumentParser) -> None:
    """Both flags."""
    group = parser.add_argument_group(
        "expectations", "Exit status 1 where one is missed; the message says by how much."
    )
    group.add_argument(
        "--expect-hit-rate",
        type=_share,
        metavar="PART",
        help="least part of the prompt tokens that is cached: 60%% or 0.6",
    )
    group.add_argument(
        "--slo",
        type=_slo,
        action="append",
        default=[],
        metavar="METRIC:PERCENTILE:MS",
        help="bound of a latency, such as ttft:p99:500 or e2el:mean:2000; may be repeated",
    )


def checked(args: argparse.Namespace, rows: Sequence[RequestRow]) -> ExitCode:
    """Prints what was missed."""
    found = missed(Expectations(args.expect_hit_rate, tuple(args.slo)), rows)
    for sentence in found:
        print(f"missed: {sentence}", file=sys.stderr)
    return ExitCode.REFUSED if found else ExitCode.OK


def _share(text: str) -> float:
    try:
        return parse_share(text)
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _slo(text: str) -> Slo:
    try:
        return parse_slo(text)
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
