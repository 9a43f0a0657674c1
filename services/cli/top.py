"""`stemcache top`: workers and tenants, live."""

from __future__ import annotations

import argparse
import sys

from cache_store.errors import PreconditionError
from services.cli.connection import add_admin_flags, admin_client
from services.cli.durations import seconds
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json
from services.console.history import History
from services.console.watch import Watch
from services.top.plain import lines


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "top",
        help="watch workers and tenants live",
        description=(
            "Shows workers and who has which part of which tier, live: hit rates, running and waiting requests, "
            "evictions, and what is not as it should be. ? shows the keys."
        ),
    )
    add_admin_flags(parser)
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="TIME", help="how often to look (default: 1s)")
    parser.add_argument("--once", action="store_true", help="print one picture as text and end")
    parser.add_argument("--json", action="store_true", help="with --once: as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints one picture, or shows them until q is pressed. A picture without workers, or degraded: UNAVAILABLE."""
    if args.json and not args.once:
        raise PreconditionError("--json prints one picture: give --once with it")
    if not args.once and not sys.stdout.isatty():
        raise PreconditionError("top needs a terminal; --once prints one picture")
    with admin_client(args) as client:
        watch = Watch(client, History())
        if not args.once:
            from services.top.app import TopApp  # imports Textual: a third of a second

            TopApp(watch, args.interval).run()
            return ExitCode.OK
        view = watch.take()
    if args.json:
        print_json(view)
    else:
        print("\n".join(lines(view)))
    return ExitCode.UNAVAILABLE if view.marks else ExitCode.OK
