"""`stemcache cache …`: what of a prompt is cached, warming, pins and purging."""

from __future__ import annotations

import argparse

from services.cli import purge
from services.cli.connection import add_tenant_flags, tenant_client
from services.cli.durations import seconds
from services.cli.exit_codes import ExitCode
from services.cli.output import below_device, bytes_text, date_text, print_json, print_table
from services.cli.prompts import add_prompt_flags, prompt_of
from services.client import Pin

Commands = argparse._SubParsersAction  # argparse has no public name for it

_HEADINGS = ("PIN", "NAME", "MODEL", "BLOCKS", "WORKERS", "SIZE", "ENDS")


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("cache", help="look up, warm, pin and purge prompts of a tenant")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_prompt_flags(_add(actions, "lookup", "say how much of a prompt is cached", lookup))
    add_prompt_flags(_add(actions, "warm", "compute a prompt, so that it is cached", warm))
    pin_parser = _add(actions, "pin", "keep a cached prompt from eviction for a time", pin)
    add_prompt_flags(pin_parser)
    pin_parser.add_argument("--ttl", type=seconds, required=True, metavar="TIME", help="how long: 90s, 10m, 7d")
    pin_parser.add_argument("--name", default="", help="for lists of pins")
    _add(actions, "unpin", "end a pin", unpin).add_argument("pin_id", help="as `cache pins` shows it")
    purge.add_flags(_add(actions, "purge", "forget what is cached of the tenant", purge_cache))
    _add(actions, "pins", "list all pins of the tenant", list_pins)


def _add(actions: Commands[argparse.ArgumentParser], name: str, text: str, run: object) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    add_tenant_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def lookup(args: argparse.Namespace) -> int:
    """Says how much of a prompt is cached."""
    prompt = prompt_of(args)
    with tenant_client(args) as client:
        found = client.cache.lookup(prompt, model=args.model, partition=args.partition)
    if args.json:
        print_json(found)
    else:
        print(
            f"{found.matched_tokens} of {found.prompt_tokens} prompt tokens are cached ({found.matched_blocks} full "
            f"blocks{below_device(found.matched_by_tier)})"
        )
    return ExitCode.OK


def warm(args: argparse.Namespace) -> int:
    """Computes a prompt."""
    prompt = prompt_of(args)
    with tenant_client(args) as client:
        usage = client.cache.warm(prompt, model=args.model, partition=args.partition)
    if args.json:
        print_json(usage)
    else:
        print(f"computed {usage.computed_tokens} of {usage.prompt_tokens} prompt tokens; the others were cached")
    return ExitCode.OK


def pin(args: argparse.Namespace) -> int:
    """Pins a prompt and prints the pin's id, for `unpin`."""
    prompt = prompt_of(args)
    with tenant_client(args) as client:
        made = client.cache.pin(prompt, args.ttl, name=args.name, model=args.model, partition=args.partition)
    if args.json:
        print_json(made)
    else:
        print(made.pin_id)
    return ExitCode.OK


def unpin(args: argparse.Namespace) -> int:
    """Ends a pin; one that is not there is said and is no failure."""
    with tenant_client(args) as client:
        was_pinned = client.cache.unpin(args.pin_id)
    print("ended" if was_pinned else "there was no such pin")
    return ExitCode.OK


def purge_cache(args: argparse.Namespace) -> int:
    """Forgets what is cached."""
    with tenant_client(args) as client:
        purged = client.cache.purge(purge.scope_of(args))
    if args.json:
        print_json(purged)
    else:
        purge.print_purged(purged)
    return ExitCode.OK


def list_pins(args: argparse.Namespace) -> int:
    """Lists pins, those that end first come first."""
    with tenant_client(args) as client:
        pins = client.cache.pins()
    if args.json:
        print_json(pins)
    else:
        print_table(_HEADINGS, [_row(each) for each in pins])
    return ExitCode.OK


def _row(pin: Pin) -> tuple[str, ...]:
    size, ends = bytes_text(pin.size_bytes), date_text(pin.expires_unix_s)
    return (pin.pin_id, pin.name, pin.model, str(pin.num_blocks), str(pin.num_workers), size, ends)
