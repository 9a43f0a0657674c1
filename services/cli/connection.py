"""Where a command finds the system that it talks to: flags first, then what a running `stemcache up` tells."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import PreconditionError
from services.client import AdminClient, StemcacheClient
from services.cluster.data_folder import DataFolder, read_private
from services.cluster.up_state import read_state
from services.tls import Trust
from services.user_settings import UserSettings


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """The flag that names the folder of a system."""
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of the system (default: STEMCACHE_HOME, else the user's)"
    )


def add_admin_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of commands that talk to the admin port."""
    add_data_dir(parser)
    parser.add_argument("--admin-address", metavar="HOST:PORT", help="admin port (default: the running system's)")
    parser.add_argument(
        "--admin-token-file", type=Path, metavar="FILE", help="operator's token (default: the folder's)"
    )


def data_folder(args: argparse.Namespace, settings: UserSettings) -> DataFolder:
    """The folder that the flags or the environment name."""
    return DataFolder(args.data_dir or settings.home)


def admin_client(args: argparse.Namespace) -> AdminClient:
    """A client of the admin port. Raises PreconditionError where no system runs and none is named."""
    settings = UserSettings.load()
    folder = data_folder(args, settings)
    address = args.admin_address or read_state(folder).admin_address
    token = read_private(args.admin_token_file or folder.admin_token).strip()
    return AdminClient(address, token, trust=settings.trust if args.admin_address else None)


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the tenants' API listens, and how it is known."""

    address: str
    trust: Trust | None
    """None: it is plain."""


def reach_of(args: argparse.Namespace) -> Reach:
    """The API that is named, with whom the settings trust; else that of the running system, which is plain.

    Raises PreconditionError where none is named and none runs.
    """
    settings = UserSettings.load()
    if args.address:
        return Reach(args.address, settings.trust)
    return Reach(read_state(data_folder(args, settings)).address, None)


def add_tenant_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of commands that call as a tenant."""
    add_data_dir(parser)
    parser.add_argument("--address", metavar="HOST:PORT", help="where the API listens (default: the running system's)")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key", help="API key (default: STEMCACHE_API_KEY)")
    keys.add_argument("--key-file", type=Path, metavar="FILE", help="file that holds the API key")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="deadline (default: 300)")


def tenant_client(args: argparse.Namespace) -> StemcacheClient:
    """A client of the tenants' API. Raises PreconditionError where the key or the system is missing."""
    settings = UserSettings.load()
    key = args.key or (read_private(args.key_file).strip() if args.key_file else settings.api_key)
    if not key:
        raise PreconditionError(
            "no API key: give --key or --key-file, or set STEMCACHE_API_KEY; "
            "`stemcache tenants keys create TENANT` makes one"
        )
    reach = reach_of(args)
    token_file: Path | None = getattr(args, "operator_token_file", None)
    operator_token = read_private(token_file).strip() if token_file else ""
    return StemcacheClient(reach.address, key, args.timeout, operator_token, reach.trust)
