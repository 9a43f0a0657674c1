"""Turns the tokens of one sample into text as they come: characters of several tokens appear whole or not yet.

Works on any decoding function. Decoders look at neighbours (leading spaces, bytes of one character), so the tokens that
were shown last are decoded along; they begin where a character begins. Owns the window of one sample. Knows no
tokenizer library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, without special tokens."""

REPLACEMENT = "\ufffd"
"""What decoders give for bytes that are no character, or not yet."""

PROMPT_TAIL_TOKENS = 8
"""As many of a prompt's last tokens are of use here."""

_CONTEXT_TOKENS = 5
_MOST_PENDING = 16
_LONGEST_TAIL = 3
"""A character has at most four bytes: its beginning, while incomplete, at most three tokens."""


class Detokenizer:
    """Text of one sample."""

    def __init__(self, decode: Decode, prompt_tail: Sequence[int]) -> None:
        """`prompt_tail`: the prompt's last tokens, so that the first token is decoded as a continuation."""
        self._decode = decode
        self._window, self._done_text = _context(decode, prompt_tail)
        self._done = len(self._window)

    def push(self, token: int) -> str:
        """Takes the next token; gives the text that is certain."""
        self._window.append(token)
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._advance(len(self._window), text)
        if len(self._window) - self._done < _MOST_PENDING:
            return ""
        # Bytes that will not become characters; the last tokens may still begin one.
        upto = len(self._window) - _LONGEST_TAIL
        return self._advance(upto, self._decode(self._window[:upto]))

    def flush(self) -> str:
        """The text of an incomplete character at the end."""
        if len(self._window) == self._done:
            return ""
        return self._advance(len(self._window), self._decode(self._window))

    def _advance(self, upto: int, text: str) -> str:
        """Text up to token `upto` of the window becomes certain; the tokens that just became so stay as context."""
        if self._done_text is None:
            self._done_text = self._decode(self._window[: self._done])
        new = text[len(self._done_text) :]
        self._window = self._window[self._done :]
        self._done = upto - self._done
        self._done_text = None
        return new


def _context(decode: Decode, tail: Sequence[int]) -> tuple[list[int], str | None]:
    """Last tokens of `tail`, from the beginning of a character on where that is near, and their text if it is known."""
    for length in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _LONGEST_TAIL + 1):
        text = decode(tail[-length:])
        if not text.startswith(REPLACEMENT):
            return list(tail[-length:]), text
    return list(tail[-_CONTEXT_TOKENS:]), None
