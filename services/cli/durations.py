"""Durations as people write them on a command line: `90`, `90s`, `10m`, `1.5h`, `7d`."""

from __future__ import annotations

import argparse
import re

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FORM = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)


_LONGEST_S = 36_500 * _UNITS_S["d"]


def is_duration(text: str) -> bool:
    """Whether it is written as one."""
    return _FORM.fullmatch(text.strip()) is not None


def seconds(text: str) -> float:
    """A duration in seconds; a number without a unit is seconds."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90s, 10m, 1.5h or 7d")
    value = float(found[1]) * _UNITS_S[found[2]]
    if value > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is too long; at most 36500d")
    return value


def some_seconds(text: str) -> float:
    """The same, but not nothing."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all; it is above 0")
    return value
