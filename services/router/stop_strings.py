"""Finds stop strings in a text that arrives in pieces, and holds back what may still become one.

The outcome does not depend on how the text is cut into pieces: the stop string that is complete first ends the text,
of two that are complete at the same character the longer one. Owns the text held back of one sample. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches one sample."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self._found = False

    @property
    def found(self) -> bool:
        """Whether the text has ended with a stop string."""
        return self._found

    def push(self, text: str) -> str:
        """Takes the next piece; gives the text that is certain. Nothing may be pushed after a stop was found."""
        assert not self._found, "the text has ended"
        if not self._stops:
            return text
        buffer = self._held + text
        start = self._first_match(buffer)
        if start is not None:
            self._found, self._held = True, ""
            return buffer[:start]
        keep = self._possible_start(buffer)
        self._held = buffer[keep:]
        return buffer[:keep]

    def flush(self) -> str:
        """The text held back, where the sample ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> int | None:
        """Start of the stop string that ends first, the longer one of two that end together."""
        ends = [(at + len(stop), at) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        return min(ends)[1] if ends else None

    def _possible_start(self, buffer: str) -> int:
        """The earliest position from which the rest of `buffer` is the beginning of a stop string."""
        for at in range(max(0, len(buffer) - self._longest + 1), len(buffer)):
            rest = buffer[at:]
            if any(stop.startswith(rest) for stop in self._stops):
                return at
        return len(buffer)
