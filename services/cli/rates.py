"""Speeds and numbers of tokens as people write them on a command line: `4.8TB/s`, `400TFLOPS`, `32k`."""

from __future__ import annotations

import argparse
import re

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b/s", re.ASCII | re.IGNORECASE)
_FLOPS = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)flop(?:s|/s)", re.ASCII | re.IGNORECASE)
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)\s*([km]?)", re.ASCII | re.IGNORECASE)
_TOKEN_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_MAX_TOKENS = 1 << 40


def bytes_per_s(text: str) -> float:
    """A bandwidth; GB/s are 10^9 bytes, GiB/s 2^30."""
    found = _BANDWIDTH.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no bandwidth; write 4.8TB/s, 64GB/s or 900MiB/s")
    if not found[3]:
        return float(found[1]) * _PREFIXES[found[2].lower()]
    return float(found[1]) * 1024.0 ** ("", "k", "m", "g", "t").index(found[2].lower())


def flops(text: str) -> float:
    """Floating-point operations per second."""
    found = _FLOPS.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no computing speed; write 400TFLOPS or 1.2PFLOPS")
    return float(found[1]) * _PREFIXES[found[2].lower()]


def tokens(text: str) -> int:
    """A number of tokens, at least 1; `32k` are 32,768."""
    found = _TOKENS.fullmatch(text.strip())
    number = int(float(found[1]) * _TOKEN_UNITS[found[2].lower()]) if found else 0
    if not 1 <= number <= _MAX_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens; write 1000, 32k (32,768) or 1m")
    return number
