"""What this router has sent to each worker and the worker's report does not contain yet. Owned by one event loop.

A report is up to a second old, and a worker reports between its steps only: a request in a long step is not in it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.index import Incarnation
from cache_store.registry import RENEW_S, WorkerLoad

REPORT_LAG_S = 2 * RENEW_S
"""A report that is read now may have been made that long ago."""

_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class Pending:
    """What to add to a report."""

    requests: int
    prefill_tokens: int


class Assignment:
    """One request at a worker. Its owner tells of the first token and of the end, both any number of times."""

    def __init__(self, owner: Assignments, incarnation: Incarnation, prefill_tokens: int, now_s: float) -> None:
        self._owner = owner
        self.incarnation = incarnation
        self.prefill_tokens = prefill_tokens
        """Still to be computed."""
        self.sent_s = now_s
        self.is_recent = prefill_tokens > 0
        """Whether it is counted among those that a report may lack."""
        self._answered_s: float | None = None

    def first_token(self, now_s: float) -> None:
        """Its prefill is done."""
        self._owner.note_prefilled(self)
        self._answered_s = now_s if self._answered_s is None else self._answered_s

    def end(self, now_s: float) -> None:
        """It is over; one that made tokens tells how long a request takes."""
        took_s = None if self._answered_s is None else now_s - self._answered_s
        self._owner.settle(self, took_s)


class _AtWorker:
    """Requests at one worker."""

    def __init__(self) -> None:
        self.open: set[Assignment] = set()
        self.prefill_tokens = 0
        """Of all that are open."""
        self.sent: deque[Assignment] = deque()
        """By the time when they were sent; those that ended or were prefilled stay until they are old."""
        self.num_recent = 0
        """Of `sent`, those whose prompt is still to be computed."""
        self.recent_tokens = 0

    def note_sent(self, assignment: Assignment) -> None:
        """One more."""
        self.open.add(assignment)
        self.prefill_tokens += assignment.prefill_tokens
        if assignment.is_recent:
            self.sent.append(assignment)
            self.num_recent += 1
            self.recent_tokens += assignment.prefill_tokens

    def forget_before(self, since_s: float) -> None:
        """A report has those by now."""
        while self.sent and self.sent[0].sent_s <= since_s:
            self.note_known(self.sent.popleft())

    def note_known(self, assignment: Assignment) -> None:
        """A report lacks it no more, or it has nothing left to be computed."""
        if assignment.is_recent:
            assignment.is_recent = False
            self.num_recent -= 1
            self.recent_tokens -= assignment.prefill_tokens


class Assignments:
    """All requests of this router, by worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: dict[Incarnation, _AtWorker] = {}
        self._request_s: dict[Incarnation, float] = {}

    def add(self, incarnation: Incarnation, prefill_tokens: int) -> Assignment:
        """Notes a request."""
        assignment = Assignment(self, incarnation, prefill_tokens, self._clock.monotonic_s())
        at = self._at.setdefault(incarnation, _AtWorker())
        at.note_sent(assignment)
        return assignment

    def pending(self, incarnation: Incarnation, report: WorkerLoad) -> Pending:
        """What the report lacks: at least what was sent lately, and whatever this router has there beyond it."""
        at = self._at.get(incarnation)
        if at is None:
            return Pending(0, 0)
        at.forget_before(self._clock.monotonic_s() - REPORT_LAG_S)
        reported_requests = report.running_requests + report.waiting_requests
        return Pending(
            requests=max(at.num_recent, len(at.open) - reported_requests),
            prefill_tokens=max(at.recent_tokens, at.prefill_tokens - report.queued_prefill_tokens),
        )

    def request_s(self, incarnation: Incarnation) -> float:
        """Usual seconds from a request's first token to its end; 0 before the first."""
        return self._request_s.get(incarnation, 0.0)

    def note_prefilled(self, assignment: Assignment) -> None:
        """Nothing of its prompt is left to be computed."""
        at = self._at.get(assignment.incarnation)
        if at is not None and assignment in at.open:
            at.note_known(assignment)
            at.prefill_tokens -= assignment.prefill_tokens
        assignment.prefill_tokens = 0

    def settle(self, assignment: Assignment, took_s: float | None) -> None:
        """It is over; `took_s` from its first token on, None where it made none."""
        at = self._at.get(assignment.incarnation)
        if at is None or assignment not in at.open:
            return
        at.open.remove(assignment)
        at.note_known(assignment)
        at.prefill_tokens -= assignment.prefill_tokens
        if not at.open:
            del self._at[assignment.incarnation]
        if took_s is not None:
            before_s = self._request_s.get(assignment.incarnation, took_s)
            self._request_s[assignment.incarnation] = before_s + _SMOOTHING * (took_s - before_s)

    def forget(self, incarnation: Incarnation) -> None:
        """The worker is gone; assignments to it may still be ended."""
        self._at.pop(incarnation, None)
        self._request_s.pop(incarnation, None)
