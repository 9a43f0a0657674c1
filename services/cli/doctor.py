"""`stemcache doctor`: looks at everything that a start needs and says what to do about what is missing."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from services.cli.connection import add_data_dir, data_folder
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json
from services.cli.up import add_system_flags
from services.cluster import checks
from services.cluster.findings import Finding, Level
from services.user_settings import UserSettings

_MARKS = {Level.OK: "ok      ", Level.WARNING: "warning ", Level.PROBLEM: "PROBLEM "}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("doctor", help="check what `up` needs and say what to do")
    add_data_dir(parser)
    add_system_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


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


def _print(finding: Finding) -> None:
    print(f"{_MARKS[finding.level]}{finding.check}: {finding.found}", flush=True)
    if finding.advice:
        print(f"        -> {finding.advice}", flush=True)
