"""`stemcache adapters …`: LoRA adapters of the models that run, through the admin port."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.cli.connection import add_admin_flags, admin_client
from services.cli.exit_codes import ExitCode
from services.cli.output import date_text, print_json, print_table
from services.client.adapter_results import LoadedAdapter

_HEADINGS = ("ADAPTER", "MODEL", "WORKERS", "TENANTS", "LOADED", "CONTENT", "FOLDER")
_DIGEST_CHARS = 12


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("adapters", help="load, list and unload LoRA adapters while the system runs")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    load_parser = _add(actions, "load", "load an adapter on all workers, in place of another one of its name", load)
    load_parser.add_argument("name", help="name that clients call it by, as a model")
    load_parser.add_argument("folder", type=Path, help="folder as PEFT saves it, the same on every machine")
    load_parser.add_argument("--base-model", default="", metavar="NAME", help="model that it adapts (default: the one)")
    load_parser.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME",
        help="who may call it, and for whom alone it exists; repeat for several (default: everybody)",
    )
    unload_parser = _add(actions, "unload", "forget an adapter and what was cached of it", unload)
    unload_parser.add_argument("name", help="as `adapters list` shows it")
    _add(actions, "list", "list adapters and what workers say of each", list_adapters)


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, run: object
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    add_admin_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def load(args: argparse.Namespace) -> int:
    """Loads an adapter. UNAVAILABLE where some worker does not serve it."""
    folder = args.folder.expanduser().absolute()
    with admin_client(args) as client:
        adapter = client.load_adapter(args.name, str(folder), args.base_model, tuple(args.tenant))
    if args.json:
        print_json(adapter)
    else:
        print(f"{adapter.name} of {adapter.base_model}, content {adapter.digest[:_DIGEST_CHARS]}: {_served(adapter)}")
        _tell_failures(adapter)
    return ExitCode.OK if adapter.is_served_everywhere else ExitCode.UNAVAILABLE


def unload(args: argparse.Namespace) -> int:
    """Unloads an adapter."""
    with admin_client(args) as client:
        pending = client.unload_adapter(args.name)
    print(f"unloaded {args.name}")
    for worker_id in pending:
        print(f"{worker_id} has not said yet that it let go of it", file=sys.stderr)
    return ExitCode.OK


def list_adapters(args: argparse.Namespace) -> int:
    """Lists all adapters."""
    with admin_client(args) as client:
        adapters = client.list_adapters()
    if args.json:
        print_json(adapters)
        return ExitCode.OK
    print_table(_HEADINGS, [_row(each) for each in adapters])
    for adapter in adapters:
        _tell_failures(adapter)
    return ExitCode.OK


def _row(adapter: LoadedAdapter) -> tuple[str, ...]:
    num_served = sum(each.state == "served" for each in adapter.workers)
    tenants = ", ".join(adapter.tenants) or "all"
    workers, digest = f"{num_served}/{len(adapter.workers)}", adapter.digest[:_DIGEST_CHARS]
    return (adapter.name, adapter.base_model, workers, tenants, date_text(adapter.load_unix_s), digest, adapter.folder)


def _served(adapter: LoadedAdapter) -> str:
    num_served = sum(each.state == "served" for each in adapter.workers)
    return f"{num_served} of {len(adapter.workers)} workers serve it"


def _tell_failures(adapter: LoadedAdapter) -> None:
    for each in adapter.workers:
        if each.state != "served":
            reason = each.error or "it has said nothing yet"
            print(f"{adapter.name} is not served by {each.worker_id}: {reason}", file=sys.stderr)
