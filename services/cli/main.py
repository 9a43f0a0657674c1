"""Parser, error lines and exit status of `stemcache`. What a command does stands in its own module."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cache_store.errors import StemcacheError, UnavailableError
from services.cli import (
    adapters,
    cache,
    certs,
    doctor,
    drain,
    explain,
    generate,
    loadtest,
    master_key,
    metrics,
    plan,
    quota_advice,
    replay,
    secrets,
    status,
    tenants,
    tokens,
    top,
    up,
    usage,
)
from services.cli.exit_codes import DESCRIPTION, ExitCode
from services.cli.output import error_line
from services.client import ApiDeadlineError, ApiUnavailableError
from services.version import VERSION


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="stemcache", description="Prefix-caching inference with tenant isolation.", epilog=DESCRIPTION
    )
    parser.add_argument("--version", action="version", version=f"stemcache {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = (
        up,
        generate,
        tokens,
        cache,
        tenants,
        usage,
        quota_advice,
        adapters,
        status,
        top,
        drain,
        explain,
        metrics,
        loadtest,
    )
    for module in (*modules, replay, plan, doctor, certs, secrets, master_key):
        module.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Every expected failure is one line on stderr and an exit status."""
    parsed = build_parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except (ApiUnavailableError, ApiDeadlineError, UnavailableError) as error:
        print(error_line(error), file=sys.stderr)
        return ExitCode.UNAVAILABLE
    except (StemcacheError, ValueError) as error:
        print(error_line(error), file=sys.stderr)
        return ExitCode.REFUSED
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.REFUSED
    except OSError as error:
        print(error_line(error), file=sys.stderr)
        return ExitCode.REFUSED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
