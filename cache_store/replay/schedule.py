"""When sessions of a trace start that has times within its sessions only."""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SessionSchedule:
    """Sessions start in the order of the file, evenly, and are cut where they get too old.

    Without the cut a few sessions that go on for days would be alone at the end, and everything would fit.
    """

    start_every_s: float = 13.5
    cut_after_s: float = 10_000.0

    def __post_init__(self) -> None:
        if not 0 <= self.start_every_s < float("inf"):
            raise InvalidRequestError("session-every", "sessions start every 0 seconds (all at once) or more")
        if not self.cut_after_s > 0:
            raise InvalidRequestError("session-cut", "sessions are cut after more than 0 seconds; inf: never")
