"""`stemcache certs`: an authority and a certificate per component, for tests and small set-ups."""

from __future__ import annotations

import argparse
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.tls_files import Component
from services.certs.folder import CertificateFolder, Step
from services.cli.exit_codes import ExitCode


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("certs", help="make or renew the certificates of all components")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where they lie, a folder for each component")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="COMPONENT=NAME",
        help="a DNS name or IP address that callers dial, beside those in the certificate before; may be repeated",
    )
    parser.add_argument("--days", type=int, default=90, metavar="N", help="how long they are valid (default: 90)")
    parser.add_argument(
        "--authority",
        type=Step,
        choices=[*Step],
        default=Step.KEEP,
        help="change who signs, a step at a time: announce, switch, retire (default: keep it)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the files and says where."""
    if not 1 <= args.days <= 3650:
        raise InvalidRequestError("days", f"--days is {args.days}; it is 1 to 3650")
    names: dict[Component, list[str]] = defaultdict(list)
    for text in args.name:
        component, equals, name = text.partition("=")
        if not equals or component not in {*Component}:
            raise InvalidRequestError(
                "name", f"--name {text!r} is not COMPONENT=NAME; components: {', '.join(Component)}"
            )
        names[Component(component)].append(name)
    folder = CertificateFolder(args.folder)
    folder.write(names, timedelta(days=args.days), args.authority)
    for component in Component:
        print(f"{component}: {folder.files(component).certificate} ({', '.join(folder.names(component))})")
    print(f"keep {folder.path / 'ca.key'} away from all components; who has it can be any of them")
    return ExitCode.OK
