"""A benchmark's result as the page keeps it: what `tests/bench/record.py` wrote, without the samples.

Read and checked here; what a benchmark's figures mean knows its section only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.machine import NOT_RUN, ROOT

FOLDER = ROOT / "tests" / "bench" / "results"
_DIGITS = 6
_KEYS = {"command", "took_s", "before", "after", "versions", "peers", "settings", "figures"}
_MACHINE_KEYS = {"time", "cpu", "cores", "memory_gib", "load", "python", "kernel", "commit", "commit_number"}


class ResultError(ValueError):
    """A file that is no result."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one run found, and under which conditions."""

    command: str
    took_s: float
    before: Mapping[str, Any]
    """The machine and the code; see `tests/bench/machine.py`."""
    after: Mapping[str, Any]
    versions: Mapping[str, str]
    peers: Mapping[str, str]
    """Versions, or why one was not run."""
    settings: Mapping[str, Any]
    figures: Mapping[str, Any]

    @property
    def commit_number(self) -> int:
        """How many commits lead to the one that was measured, itself among them."""
        return int(self.before["commit_number"])

    @property
    def absent_peers(self) -> dict[str, str]:
        """Those that were not run, and why."""
        return {name: told for name, told in self.peers.items() if told.startswith(NOT_RUN)}


def condense(text: str) -> str:
    """A benchmark's JSON as it is kept: without samples, numbers to six digits. Raises ResultError."""
    document = {name: _rounded(value) for name, value in _read(text).items() if name != "raw"}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def read_result(text: str) -> Result:
    """Raises ResultError."""
    document = _read(text)
    return Result(**{name: document[name] for name in _KEYS})


def read_folder(folder: Path) -> dict[str, Result]:
    """All results by name. Raises ResultError, with the file's name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = read_result(path.read_text(encoding="utf-8"))
        except ResultError as error:
            raise ResultError(f"{path}: {error}") from error
    return found


def _read(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ResultError(f"it is no JSON: {error}") from error
    if not isinstance(document, dict) or (lacking := _KEYS - document.keys()):
        lacking = _KEYS - set(document) if isinstance(document, dict) else _KEYS
        raise ResultError(f"it is no benchmark's result: {', '.join(sorted(lacking))} are missing")
    for name in ("before", "after"):
        if lacking := _MACHINE_KEYS - document[name].keys():
            raise ResultError(f"{name} does not tell {', '.join(sorted(lacking))}; run the benchmark anew")
    return document


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
