"""How results and errors are written for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from services.client import ApiError
from services.client.results import CachedByTier

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def error_line(error: Exception) -> str:
    """One line: what went wrong, the status where a server said it, and when to come again."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, ApiError):
        return f"stemcache: error: {text}"
    hints = [each.description for each in error.details.field_violations if each.description not in text]
    if error.details.retry_after_s is not None:
        hints.append(f"try again in {error.details.retry_after_s:g} s")
    return f"stemcache: {error.code.name}: {'; '.join((text, *hints))}"


def print_json(value: DataclassInstance | Sequence[DataclassInstance]) -> None:
    """Writes a value, or a list of values, as one JSON document."""
    document = [asdict(each) for each in value] if isinstance(value, Sequence) else asdict(value)
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    print()


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes columns, left aligned, as wide as they need to be."""
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    for line in (headings, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def date_text(unix_s: float) -> str:
    """A point in time, UTC, to the second."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def bytes_text(size_bytes: int) -> str:
    """A size in the largest unit that leaves at least 1."""
    if size_bytes < 1 << 10:
        return f"{size_bytes} B"
    for shift, unit in ((30, "GiB"), (20, "MiB")):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.1f} {unit}"
    return f"{size_bytes / (1 << 10):.1f} KiB"


def below_device(tokens: CachedByTier) -> str:
    """How many of the cached tokens lay elsewhere than on the device, where any did."""
    parts = (
        (tokens.host_tokens, "in host memory"),
        (tokens.disk_tokens, "on disk"),
        (tokens.peer_tokens, "at another worker"),
    )
    return "".join(f", {number} {where}" for number, where in parts if number)
