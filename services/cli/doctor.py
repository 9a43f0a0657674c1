"""`stemcache doctor`: looks at everything that a start needs and says what to do about what is missing."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cache_store.errors import InvalidRequestError, PreconditionError
from services.cli.connection import add_data_dir, data_folder
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json
from services.cli.up import add_system_flags
from services.cluster import checks
from services.cluster.data_folder import read_private
from services.cluster.findings import Finding, Level
from services.cluster.host_port import host_port
from services.cluster.redis_roles import RedisRole
from services.cluster.secret_files import SecretFiles
from services.user_settings import UserSettings

_MARKS = {Level.OK: "ok      ", Level.WARNING: "warning ", Level.PROBLEM: "PROBLEM "}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("doctor", help="check what `up` needs and say what to do")
    add_data_dir(parser)
    add_system_flags(parser)
    _add_cluster_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a cluster", "instead of this machine: what a deployment gets wrong most")
    group.add_argument("--cluster", action="store_true", help="check a cluster that runs; TLS as STEMCACHE_TLS_* say")
    group.add_argument("--secrets", type=Path, metavar="DIR", help="folder with redis-url-* (see `stemcache secrets`)")
    group.add_argument("--admin-address", default="", metavar="HOST:PORT", help="operator's port of a router")
    group.add_argument("--address", default="", metavar="HOST:PORT", help="tenants' port of a router")
    group.add_argument(
        "--inside",
        action="append",
        default=[],
        metavar="IP[:PORT]",
        help="run where tenants are: IP address of what must not answer there, such as Redis, Ray's head and nodes; "
        "may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Prints all findings; REFUSED where one of them is a problem."""
    findings = []
    for finding in find(args, UserSettings.load()):
        findings.append(finding)
        if not args.json:
            _print(finding)
    if args.json:
        print_json(findings)
    return ExitCode.REFUSED if any(each.level is Level.PROBLEM for each in findings) else ExitCode.OK


def find(args: argparse.Namespace, settings: UserSettings) -> Iterator[Finding]:
    """All checks, one after the other: some take a second."""
    if args.cluster:
        yield from _find_in_cluster(args, settings)
        return
    for flag in ("inside", "secrets", "admin_address", "address"):
        if getattr(args, flag):
            raise InvalidRequestError(flag, f"--{flag.replace('_', '-')} is about a cluster; give --cluster too")
    folder = data_folder(args, settings)
    yield checks.check_data_folder(folder)
    yield from checks.check_redis_server(args.redis_url or settings.redis_url)
    yield checks.check_port("port", args.host, args.port, "--port", folder)
    yield checks.check_port("admin port", "127.0.0.1", args.admin_port, "--admin-port", folder)
    yield checks.check_compiler(settings.cache_dir)
    model, weights_bytes = checks.check_model_folder(args.model, settings.cache_dir)
    yield model
    yield checks.check_memory(args.workers, weights_bytes, folder)
    yield checks.check_temporary_folder(Path(tempfile.gettempdir()))


def _find_in_cluster(args: argparse.Namespace, settings: UserSettings) -> Iterator[Finding]:
    from services.cluster.cluster_checks import Places, check_cluster, check_reach  # imports gRPC's and Redis' clients

    for flag in ("admin_address", "address"):
        if getattr(args, flag):
            host_port(flag, getattr(args, flag))
    if args.inside:
        yield from check_reach(args.inside, [args.address] if args.address else [])
        return
    if args.secrets and not args.secrets.is_dir():
        raise InvalidRequestError("secrets", f"--secrets {args.secrets}: there is no such folder")
    urls: dict[RedisRole, str] = {}
    for role in RedisRole:
        path = SecretFiles(args.secrets).redis_url(role) if args.secrets else None
        if path is not None and path.exists():
            urls[role] = read_private(path).strip()
    if not urls and settings.redis_url:
        urls[RedisRole.ROUTER] = settings.redis_url
    if not urls:
        raise PreconditionError("no Redis is named: give --secrets DIR, or set STEMCACHE_REDIS_URL to the router's URL")
    yield from check_cluster(Places(urls, args.admin_address, args.address, settings.trust))


def _print(finding: Finding) -> None:
    print(f"{_MARKS[finding.level]}{finding.check}: {finding.found}", flush=True)
    if finding.advice:
        print(f"        -> {finding.advice}", flush=True)
