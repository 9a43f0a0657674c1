"""The folder of a run: which files it has, and reading and writing them.

| file | what |
| --- | --- |
| result.json | `services/loadtest/result.py` |
| requests.jsonl | a RequestRow a line, by intended time |
| prime.jsonl | the same, of requests that filled the cache before; may be missing |
| server_metrics.jsonl | a ServerSample a line, by time; may be missing |
| conditions.json | `services/loadtest/conditions.py` |
| summary.txt | the text that was printed |

A sweep's folder has one such folder per point and `sweep.json`. Keeps no state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cache_store.errors import InvalidRequestError
from services.loadtest.conditions import CONDITIONS_VERSION, Conditions
from services.loadtest.json_codec import from_json, to_json
from services.loadtest.records import RequestRow, ServerSample
from services.loadtest.result import Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESULT, CONDITIONS, REQUESTS = "result.json", "conditions.json", "requests.jsonl"
PRIME, SERVER_METRICS, SUMMARY, SWEEP = "prime.jsonl", "server_metrics.jsonl", "summary.txt", "sweep.json"
T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run has left."""

    folder: Path
    result: Result
    conditions: Conditions
    requests: tuple[RequestRow, ...]
    samples: tuple[ServerSample, ...]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point of a sweep."""

    folder: str
    """Within the sweep's."""
    request_rate: float | None
    max_concurrency: int | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """sweep.json: its points in the order in which they were measured."""

    varied: str
    """`request_rate` or `max_concurrency`."""
    points: tuple[SweepPoint, ...]


def write_rows(path: Path, rows: Iterable[DataclassInstance]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(to_json(row), separators=(",", ":"), ensure_ascii=False) + "\n")


def read_rows(path: Path, kind: type[T]) -> tuple[T, ...]:
    """What `write_rows` wrote; nothing where there is no such file. Raises InvalidRequestError with the line."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8") as file:
        return tuple(
            from_json(kind, _parsed(line, f"{path}:{number}"), f"{path}:{number}")
            for number, line in enumerate(file, start=1)
            if line.strip()
        )


def write_document(path: Path, document: object) -> None:
    """A JSON document for people and programs."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_result(folder: Path) -> Result:
    """Raises InvalidRequestError where the folder is none of a run."""
    return Result.from_json(read_document(folder / RESULT), str(folder / RESULT))


def read_conditions(folder: Path) -> Conditions:
    """Raises InvalidRequestError where they are missing or of another version."""
    where = str(folder / CONDITIONS)
    found = from_json(Conditions, read_document(folder / CONDITIONS), where)
    if found.conditions_version != CONDITIONS_VERSION:
        raise InvalidRequestError(where, f"{where} has version {found.conditions_version}, not {CONDITIONS_VERSION}")
    return found


def read_run(folder: Path) -> Run:
    """Everything. Raises InvalidRequestError where something is missing or wrong."""
    requests = read_rows(folder / REQUESTS, RequestRow)
    samples = read_rows(folder / SERVER_METRICS, ServerSample)
    return Run(folder, read_result(folder), read_conditions(folder), requests, samples)


def read_sweep(folder: Path) -> Sweep:
    """Raises InvalidRequestError where the folder is none of a sweep."""
    return from_json(Sweep, read_document(folder / SWEEP), str(folder / SWEEP))


def read_document(path: Path) -> object:
    """A JSON document. Raises InvalidRequestError where it is missing or none."""
    try:
        return _parsed(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InvalidRequestError(
            str(path), f"{path} cannot be read ({error.strerror}); give the folder that a load test wrote"
        ) from error


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(where, f"{where} is no JSON: {error}; was the run cut short?") from error
