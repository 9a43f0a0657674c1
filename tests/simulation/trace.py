"""What happened in a run, line by line: for reading, and as a digest for comparing two runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

MAX_LINES = 200_000


class Trace:
    """Of one run."""

    def __init__(self, now_s: Callable[[], float], start_s: float) -> None:
        self._now_s = now_s
        self._start_s = start_s
        self._digest = hashlib.blake2b(digest_size=16)
        self.lines: list[str] = []
        """All of them."""

    def note(self, place: str, what: str) -> None:
        """One thing that happened somewhere."""
        line = f"{self._now_s() - self._start_s:10.6f} {place:8} {what}"
        self._digest.update(line.encode())
        if len(self.lines) < MAX_LINES:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """Of everything so far."""
        return self._digest.hexdigest()
