"""Incremental text equals the text of all tokens, and no half character is ever shown."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.router.detokenizer import REPLACEMENT, Detokenizer


def decode_bytes(ids: Sequence[int]) -> str:
    """A byte-level tokenizer: a token is a byte."""
    return bytes(ids).decode("utf-8", "replace")


def decode_words(ids: Sequence[int]) -> str:
    """A tokenizer whose words carry a leading space that the first word loses."""
    return "".join(f" w{token}" for token in ids)[1:]


def decode_fallback(ids: Sequence[int]) -> str:
    """A tokenizer that gives one replacement per byte where a whole run of bytes is no text."""
    data = bytes(ids)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return REPLACEMENT * len(data)


@given(st.text(max_size=40))
def test_text_by_bytes(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes, [])
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in pieces)


@given(st.text(max_size=40))
def test_text_by_bytes_with_fallback(text: str) -> None:
    detokenizer = Detokenizer(decode_fallback, [])
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text


@given(st.binary(max_size=80))
def test_bytes_that_are_no_text_end_as_their_lossy_decoding(data: bytes) -> None:
    detokenizer = Detokenizer(decode_bytes, [])
    made = "".join(detokenizer.push(byte) for byte in data) + detokenizer.flush()
    assert made == data.decode("utf-8", "replace")


def test_endless_junk_is_shown_in_time_and_a_character_after_it_is_whole() -> None:
    detokenizer = Detokenizer(decode_bytes, [])
    made = "".join(detokenizer.push(0xFF) for _ in range(100))
    assert len(made) >= 80
    made += "".join(detokenizer.push(byte) for byte in "é€😀".encode())
    assert made == REPLACEMENT * 100 + "é€😀"


def test_the_first_token_continues_the_prompt() -> None:
    assert Detokenizer(decode_words, [1, 2]).push(3) == " w3"
    assert Detokenizer(decode_words, []).push(3) == "w3"


@given(st.lists(st.integers(0, 99), max_size=40), st.lists(st.integers(0, 99), min_size=1, max_size=10))
def test_words_keep_their_spaces_over_windows(made: list[int], prompt: list[int]) -> None:
    detokenizer = Detokenizer(decode_words, prompt)
    text = "".join(detokenizer.push(token) for token in made)
    assert decode_words(prompt) + text == decode_words(prompt + made)


def test_a_prompt_that_was_cut_inside_a_character_does_no_harm() -> None:
    detokenizer = Detokenizer(decode_fallback, list("😀😀😀".encode()))
    assert "".join(detokenizer.push(byte) for byte in "é€".encode()) == "é€"


def test_the_window_stays_small() -> None:
    sizes: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        sizes.append(len(ids))
        return decode_words(ids)

    detokenizer = Detokenizer(decode, [])
    for token in range(500):
        detokenizer.push(token)
    assert max(sizes) <= 8
