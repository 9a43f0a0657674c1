"""`stemcache drain WORKER`: lets a worker leave; its blocks go to the others, its requests end or go on there."""

from __future__ import annotations

import argparse

from services.cli.connection import add_admin_flags, admin_client
from services.cli.durations import seconds
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "drain",
        help="let a worker leave without a cold start",
        description=(
            "Lets a worker leave: it takes no new requests, gives its hottest blocks to other workers, and what it "
            "runs ends or goes on elsewhere. Returns when it leaves."
        ),
    )
    parser.add_argument("worker", help="as `stemcache status` shows it")
    parser.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="what running requests get to end before they go on elsewhere (default: 30s)",
    )
    add_admin_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Drains a worker."""
    with admin_client(args) as client:
        drained = client.drain_worker(args.worker, args.grace)
    if args.json:
        print_json(drained)
    else:
        print(
            f"{args.worker} has left: others took {drained.moved_blocks} blocks, {drained.cached_blocks} were cached; "
            f"{drained.handed_over_requests} requests go on elsewhere"
        )
    return ExitCode.OK
