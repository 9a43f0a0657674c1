"""What this router has sent to each worker and no report of the worker can contain yet. Owned by one event loop."""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.index import Incarnation
from cache_store.registry import RENEW_S

REPORT_LAG_S = 2 * RENEW_S
"""After that long a worker's report, as this router has read it, contains the request."""

_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class Pending:
    """Sums over the requests on their way to one worker."""

    requests: int
    prefill_tokens: int


class Assignment:
    """One request on its way. Its owner tells of the first token and of the end, both any number of times."""

    def __init__(self, owner: Assignments, incarnation: Incarnation, prefill_tokens: int, now_s: float) -> None:
        self._owner = owner
        self.incarnation = incarnation
        self.prefill_tokens = prefill_tokens
        self.sent_s = now_s
        self._started_s: float | None = None

    def first_token(self, now_s: float) -> None:
        """Its prefill is done."""
        if self._started_s is None:
            self._started_s = now_s
            self._owner.settle(self)

    def end(self, now_s: float) -> None:
        """It is over; one that made tokens tells how long a request takes."""
        self._owner.settle(self)
        if self._started_s is not None:
            self._owner.observe(self.incarnation, now_s - self._started_s)
            self._started_s = None


class Assignments:
    """All requests on their way, by worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[Incarnation, set[Assignment]] = {}
        self._request_s: dict[Incarnation, float] = {}

    def add(self, incarnation: Incarnation, prefill_tokens: int) -> Assignment:
        """Notes a request."""
        assignment = Assignment(self, incarnation, prefill_tokens, self._clock.monotonic_s())
        self._pending.setdefault(incarnation, set()).add(assignment)
        return assignment

    def pending(self, incarnation: Incarnation) -> Pending:
        """What the worker's report lacks."""
        since_s = self._clock.monotonic_s() - REPORT_LAG_S
        recent = [each for each in self._pending.get(incarnation, ()) if each.sent_s > since_s]
        return Pending(len(recent), sum(each.prefill_tokens for each in recent))

    def request_s(self, incarnation: Incarnation) -> float:
        """Usual seconds from a request's first token to its end; 0 before the first."""
        return self._request_s.get(incarnation, 0.0)

    def observe(self, incarnation: Incarnation, seconds: float) -> None:
        """Takes the time of one request into the usual time."""
        before = self._request_s.get(incarnation, seconds)
        self._request_s[incarnation] = before + _SMOOTHING * (seconds - before)

    def settle(self, assignment: Assignment) -> None:
        """It is on its way no longer."""
        waiting = self._pending.get(assignment.incarnation)
        if waiting is not None:
            waiting.discard(assignment)
            if not waiting:
                del self._pending[assignment.incarnation]

    def forget(self, incarnation: Incarnation) -> None:
        """The worker is gone; assignments to it may still be ended."""
        self._pending.pop(incarnation, None)
        self._request_s.pop(incarnation, None)
