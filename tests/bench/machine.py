"""What a benchmark's figures depend on, and how its tables look in a terminal."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = "not run"
_RESULTS = (":!tests/bench/results", ":!BENCHMARKS.md")
"""What benchmarks write themselves is no change of what they measure."""


def machine() -> dict[str, object]:
    """The machine and the code, as they are now."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "unknown")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "commit": _git("rev-parse", "HEAD"),
        "commit_number": int(_git("rev-list", "--count", "HEAD").replace("unknown", "0")),
        "changed_files": len(_git("status", "--porcelain", "--", ".", *_RESULTS).splitlines()),
    }


def versions(*packages: str) -> dict[str, str]:
    """Of packages of this environment."""
    return {package: _version(package) for package in packages}


def conditions_line(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """For people."""
    return (
        f"{before['cores']} cores {before['cpu']}, Python {before['python']}, commit {before['commit']} with "
        f"{before['changed_files']} changed files, load average {before['load']} before, {after['load']} after"
    )


def print_table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as what stands in them; the first is text, the others numbers."""
    widths = [max(len(row[at]) for row in (headings, *rows)) for at in range(len(headings))]
    for row in (headings, *rows):
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *others)))


def verdict(reached: float, limit: float) -> str:
    """Whether a value that should not exceed `limit` does."""
    return "reached" if reached <= limit else "NOT reached"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_RUN


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _git(*arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else "unknown"
