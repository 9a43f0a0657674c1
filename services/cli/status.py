"""`stemcache status`: the running system as its router sees it."""

from __future__ import annotations

import argparse

from services.cli.connection import add_admin_flags, admin_client
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json, print_table
from services.client.admin_results import ClusterStatus, WorkerStatus

_HEADINGS = ("WORKER", "MODEL", "RUNNING", "WAITING", "BLOCKS USED", "PREFILL TOK/S", "ADDRESS")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("status", help="show the router and its workers")
    add_admin_flags(parser)
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the status. A system without workers, or a degraded one, ends with UNAVAILABLE."""
    with admin_client(args) as client:
        status = client.status()
    if args.json:
        print_json(status)
    else:
        _print(status)
    return ExitCode.OK if status.workers and not status.degraded else ExitCode.UNAVAILABLE


def _print(status: ClusterStatus) -> None:
    state = "degraded: serves without reuse, exact and isolated" if status.degraded else "well"
    print(f"stemcache {status.version}: {state}")
    print(
        f"control data: generation {status.control_generation}, {status.control_age_s:.1f} s old; "
        f"{status.running_requests} requests running"
    )
    for refused in status.refused_workers:
        print(f"refused: {refused}")
    if status.workers:
        print_table(_HEADINGS, [_row(each) for each in status.workers])
    else:
        print("no worker is ready")


def _row(worker: WorkerStatus) -> tuple[str, ...]:
    speed = f"{worker.prefill_tokens_per_s:.0f}" if worker.prefill_tokens_per_s else "-"
    blocks = f"{worker.used_blocks}/{worker.total_blocks}"
    running = f"{worker.running_requests}/{worker.max_num_sequences}"
    return (worker.worker_id, worker.model, running, str(worker.waiting_requests), blocks, speed, worker.address)
