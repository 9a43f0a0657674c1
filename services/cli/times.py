"""Points in time as people write them on a command line: `2h` and `7d` ago, `2030-01-31`, `2030-01-31T10:00Z`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime

from services.cli.durations import is_duration, seconds


@dataclass(frozen=True, slots=True)
class PointInTime:
    """Either so long ago, or a time of its own."""

    ago_s: float | None
    at_unix_s: float

    def unix_s(self, now_s: float) -> float:
        """Seconds since 1970."""
        return self.at_unix_s if self.ago_s is None else now_s - self.ago_s


def point_in_time(text: str) -> PointInTime:
    """Without a zone it is UTC."""
    if is_duration(text):
        return PointInTime(seconds(text), 0.0)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no point in time; write 2h or 7d for so long ago, 2030-01-31, or 2030-01-31T10:00Z"
        ) from None
    return PointInTime(None, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
