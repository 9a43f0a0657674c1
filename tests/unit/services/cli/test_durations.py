"""Durations on the command line."""

from __future__ import annotations

import argparse

import pytest

from services.cli.durations import seconds, some_seconds
from services.cli.times import point_in_time


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5_400), ("7d", 604_800), (" 2m ", 120)]
)
def test_a_duration_is_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "m", "-1", "1w", "10 m", "1e3", "nan", "٣m"])
def test_what_is_no_duration_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="10m"):
        seconds(text)


def test_what_is_too_long_or_nothing_is_refused() -> None:
    for read in (seconds, some_seconds, point_in_time):
        with pytest.raises(argparse.ArgumentTypeError, match="'99999999d' is too long; at most 36500d"):
            read("99999999d")
    with pytest.raises(argparse.ArgumentTypeError, match="it is above 0"):
        some_seconds("0s")
    assert seconds("0s") == 0
    assert point_in_time("2h").ago_s == 7_200
