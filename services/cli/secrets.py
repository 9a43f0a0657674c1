"""`stemcache secrets`: keys, tokens, Redis users and their URLs, a file each, for set-ups by hand."""

from __future__ import annotations

import argparse
from pathlib import Path

from cache_store.errors import InvalidRequestError
from services.cli.exit_codes import ExitCode
from services.cluster.secret_files import TLS_FOLDER, SecretFiles


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("secrets", help="make keys, tokens and Redis users for a set-up by hand")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where they go; a new folder")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--redis", metavar="HOST:PORT", help="where processes will find Redis or Valkey")
    what.add_argument(
        "--renew",
        action="store_true",
        help="of a folder that is there: give Redis users the rights that this version needs, and make what is missing",
    )
    tls = parser.add_mutually_exclusive_group()
    tls.add_argument(
        "--tls-folder",
        type=Path,
        default=TLS_FOLDER,
        metavar="DIR",
        help=f"where each process will find tls.crt, tls.key and ca.crt (default: {TLS_FOLDER})",
    )
    tls.add_argument("--plain", dest="tls_folder", action="store_const", const=None, help="Redis has no TLS")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Makes the files and names them, not what is in them."""
    files = SecretFiles(args.folder)
    if args.renew:
        if args.tls_folder != TLS_FOLDER:
            raise InvalidRequestError("renew", "--renew leaves URLs as they are; give no --tls-folder and no --plain")
        files.renew()
    else:
        files.make(args.redis, args.tls_folder)
    for path in sorted(args.folder.iterdir()):
        print(path)
    return ExitCode.OK
