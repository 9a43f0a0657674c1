"""Stop strings: never in the text, and the same text however it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.stop_strings import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    watcher = StopStrings(stops)
    text = ""
    for piece in pieces:
        text += watcher.push(piece)
        if watcher.found:
            return text, True
    return text + watcher.flush(), False


def naive(stops: list[str], text: str) -> tuple[str, bool]:
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def cut(text: str, places: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(borders)]


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["END"], ["a", "E", "N", "D", "b"], ("a", True)),
        (["END"], ["aEN", "d"], ("aENd", False)),
        (["END"], ["aEN"], ("aEN", False)),
        (["aab"], ["a", "a", "a", "b"], ("a", True)),
        (["abcd", "bc"], ["abcd"], ("a", True)),
        (["bc", "abc"], ["xabc"], ("x", True)),
        (["é"], ["caf", "é"], ("caf", True)),
        ([], ["a", "b"], ("ab", False)),
    ],
)
def test_examples(stops: list[str], pieces: list[str], expected: tuple[str, bool]) -> None:
    assert run(stops, pieces) == expected


def test_certain_text_is_not_held_back() -> None:
    watcher = StopStrings(["END"])
    assert watcher.push("abE") == "ab"
    assert watcher.push("x") == "Ex"


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    st.text("ab", max_size=24),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_equals_the_naive_search_whatever_the_pieces(stops: list[str], text: str, places: list[int]) -> None:
    assert run(stops, cut(text, places)) == naive(stops, text)


@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3),
    st.text("abc", max_size=30),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_the_text_never_contains_a_stop_string(stops: list[str], text: str, places: list[int]) -> None:
    made, _ = run(stops, cut(text, places))
    assert not any(stop in made for stop in stops)
