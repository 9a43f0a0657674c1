"""`stemcache explain`: why a recent request went to its worker, and why not more of it was cached."""

from __future__ import annotations

import argparse

from services.cli.connection import add_admin_flags, admin_client
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json, print_table
from services.client.admin_results import Explanation

_HEADINGS = ("WORKER", "EXPECTED TOKENS", "COUNTED", "QUEUE S", "COMPUTE S", "OTHERS S", "COST")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "explain",
        help="say why a request went where it went, and what it reused",
        description="Says why a recent request went to its worker, and why not more of its prompt was cached. Asks one "
        "router, which remembers the last requests that it ran itself.",
    )
    parser.add_argument("request_id", metavar="REQUEST_ID", help="id of the request, as its answer tells it")
    parser.add_argument("--tenant", required=True, metavar="NAME", help="whose request it was")
    add_admin_flags(parser)
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the explanation."""
    with admin_client(args) as client:
        explanation = client.explain_request(args.tenant, args.request_id)
    if args.json:
        print_json(explanation)
    else:
        _print(explanation)
    return ExitCode.OK


def _print(explanation: Explanation) -> None:
    record = explanation.record
    state = record.status or "running"
    print(f"{record.request_id} of {record.tenant}, model {record.model}: {state}, {record.attempts} tried")
    print(f"where: {explanation.route}")
    print(f"reuse: {explanation.reuse}")
    if record.terms:
        print()
        print_table(
            _HEADINGS,
            [
                (
                    term.worker_id,
                    f"{term.matched_tokens:,}",
                    f"{term.counted_tokens:,}",
                    f"{term.queue_s:.3f}",
                    f"{term.prefill_s:.3f}",
                    f"{term.recompute_s:.3f}",
                    f"{term.cost:.3f}",
                )
                for term in record.terms
            ],
        )
