"""A clock that an operator sets wrong: what a file says is added to the machine's time of day.

Time that passes is not touched: the monotonic clock of a machine does not jump with its wall clock.
"""

from __future__ import annotations

from pathlib import Path

from cache_store.clock import SystemClock


class JumpingClock(SystemClock):
    """Reads the seconds to add from `file`; none while there is no such file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def unix_s(self) -> float:
        try:
            return super().unix_s() + float(self._file.read_text() or 0)
        except FileNotFoundError:
            return super().unix_s()
