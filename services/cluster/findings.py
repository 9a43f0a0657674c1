"""What a check of the surroundings found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, less well than it could."""
    PROBLEM = "problem"
    """`stemcache up` would fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty where all is well."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, found)


def problem(check: str, found: str, advice: str) -> Finding:
    """It would not start."""
    return Finding(check, Level.PROBLEM, found, advice)


def warning(check: str, found: str, advice: str) -> Finding:
    """It would start."""
    return Finding(check, Level.WARNING, found, advice)
