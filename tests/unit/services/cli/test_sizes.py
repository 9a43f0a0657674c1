"""Sizes on a command line."""

from __future__ import annotations

import argparse

import pytest

from services.cli.sizes import size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1GiB", 1 << 30), ("512mib", 512 << 20), ("1.5 GiB", 3 << 29), ("2TiB", 2 << 40), ("4096", 4096), ("8KiB", 8192)],
)
def test_sizes(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "1GB", "-1GiB", "1e9", "0", "0.1", "1GiB more", "\u0661GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size"):
        size_bytes(text)
