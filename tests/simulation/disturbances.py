"""What was disturbed when, and what that excuses: a request may fail only where it could not have been served.

A store that is away, empty, old or slow excuses nothing. One disturbed worker excuses nothing either, as long as others
are well: the request is tried again, or goes on, elsewhere. A worker that was replaced and cannot be reached counts as
two: so many were tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from tests.simulation.loop import VirtualLoop

RECOVERY_S = 6.0
"""A disturbance counts for so long after its end: leases, views and reconnections follow it."""


@dataclass
class _Disturbance:
    place: str
    other: str
    """The other end of a line; empty: the place itself."""
    from_s: float
    to_s: float


class Disturbances:
    """Of one run."""

    def __init__(self, loop: VirtualLoop, num_workers: int) -> None:
        self._loop = loop
        self._num_workers = num_workers
        self._all: list[_Disturbance] = []

    def note(self, place: str, seconds: float, other: str = "") -> None:
        """A place, or the line from it to another, is disturbed from now on."""
        now_s = self._loop.time()
        self._all.append(_Disturbance(place, other, now_s, now_s + seconds + RECOVERY_S))

    def excuse(self, code: grpc.StatusCode, routers: list[str], since_s: float, num_messages: int) -> str | None:
        """Why a request that was begun at `since_s` and fails now may do so; None: it may not."""
        if code not in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.ABORTED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        ):
            return None
        disturbed_routers = {router for router in routers if self._is_disturbed(router, "", since_s)}
        if disturbed_routers >= set(routers) or (num_messages and routers[-1] in disturbed_routers):
            return "its routers were disturbed"
        lines = ("", "store", *routers)
        numbers = [
            sum(self._is_disturbed(f"w{worker}", line, since_s) for line in dict.fromkeys(lines))
            for worker in range(self._num_workers)
        ]
        if sum(numbers) >= 2:
            return f"{sum(numbers)} incarnations may have been lost"
        return None

    def _is_disturbed(self, place: str, other: str, since_s: float) -> bool:
        return any(each.place == place and each.other == other and each.to_s >= since_s for each in self._all)
