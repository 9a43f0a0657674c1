"""Sizes as people write them on a command line: `512MiB`, `1GiB`, `1.5GiB`, `2TiB`."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def size_bytes(text: str) -> int:
    """A size in bytes, at least 1; a number without a unit is bytes."""
    found = _FORM.fullmatch(text.strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 512MiB, 1GiB or 1.5TiB")
    size = int(float(found[1]) * unit)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size to keep anything in; leave the option out instead")
    return size
