"""Starts parts in order, restarts those that fail, stops them in reverse order. Knows nothing of Ray or processes.

Parts stand in stages: a part is started, also again, only while everything in the stages before it is ready; parts of
one stage start side by side. A part that fails before the system was complete ends the start: its reason is an error of
the set-up, and trying again would hide it. Later a failed part is started again after a pause that doubles with each
failure in a row, for as long as it takes. A part that left, as somebody told it to, is not started again. The caller
turns the wheel: `tick` moves everything on by what is due and says what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cache_store.clock import Clock
from cache_store.errors import PreconditionError, StemcacheError
from services.cluster.parts import Health, Part


class PartState(StrEnum):
    """Where a part stands."""

    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    """Failed; waits for its next start."""
    LEFT = "left"
    """Ended as it was told to; stays away, and nothing waits for it."""
    STOPPED = "stopped"


_SETTLED = (PartState.READY, PartState.LEFT)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a failed part is started again."""

    first_pause_s: float = 0.5
    longest_pause_s: float = 15.0
    steady_after_s: float = 30.0
    """A part that was ready for that long begins again with the first pause."""
    start_timeout_s: float = 180.0
    """A part that is not ready after that long has failed."""

    def pause_s(self, num_failures: int) -> float:
        """Pause after the n-th failure in a row, n from 1."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(num_failures - 1, 30))


@dataclass(frozen=True, slots=True)
class Transition:
    """What changed in a tick."""

    part: str
    state: PartState
    reason: str = ""


@dataclass(slots=True)
class _Supervised:
    part: Part
    stage: int
    state: PartState = PartState.IDLE
    since_s: float = 0.0
    num_failures: int = 0
    num_starts: int = 0
    next_start_s: float = 0.0


class Supervisor:
    """Owns its parts from the first tick to `stop`. One thread."""

    def __init__(self, stages: Sequence[Sequence[Part]], clock: Clock, policy: RestartPolicy = RestartPolicy()) -> None:
        self._clock = clock
        self._policy = policy
        self._all = [_Supervised(part, stage) for stage, parts in enumerate(stages) for part in parts]
        self._complete = False

    @property
    def complete(self) -> bool:
        """Whether every part has been ready at once; stays true when one fails later."""
        return self._complete

    def states(self) -> dict[str, PartState]:
        """State by part."""
        return {each.part.name: each.state for each in self._all}

    def starts(self) -> dict[str, int]:
        """How often each part was started."""
        return {each.part.name: each.num_starts for each in self._all}

    def tick(self) -> list[Transition]:
        """Moves everything on. Raises PreconditionError for a failure before the system is complete."""
        self.check_invariants()
        changes = [change for each in self._all for change in self._move(each)]
        if all(each.state in _SETTLED for each in self._all):
            self._complete = True
        return changes

    def stop(self, report: Callable[[Transition], None]) -> None:
        """Stops all parts in reverse order and reports each as it ends. What one raises becomes its reason."""
        for each in reversed(self._all):
            if each.state in (PartState.IDLE, PartState.LEFT, PartState.STOPPED):
                each.state = PartState.STOPPED
                continue
            report(self._enter(each, PartState.STOPPED, self._end(each)))

    def check_invariants(self) -> None:
        """No part runs before its stage; a complete system has nothing idle."""
        reached = max((each.stage for each in self._all if each.state is not PartState.IDLE), default=0)
        for each in self._all:
            assert not (self._complete and each.state is PartState.IDLE), each.part.name
            assert each.stage >= reached or each.state is not PartState.IDLE, each.part.name

    def _move(self, each: _Supervised) -> Iterator[Transition]:
        now_s = self._clock.monotonic_s()
        match each.state:
            case PartState.IDLE if self._stage_open(each.stage):
                yield self._start(each)
            case PartState.STARTING:
                yield from self._watch_start(each, now_s)
            case PartState.READY:
                condition = each.part.condition()
                if condition.health is Health.LEFT:
                    yield self._leave(each, condition.reason)
                elif condition.health is not Health.READY:
                    if now_s - each.since_s >= self._policy.steady_after_s:
                        each.num_failures = 0
                    yield self._fail(each, condition.reason or "no longer ready")
            case PartState.PAUSED if now_s >= each.next_start_s and self._stage_open(each.stage):
                yield self._start(each)
            case _:
                pass

    def _stage_open(self, stage: int) -> bool:
        return all(other.state in _SETTLED for other in self._all if other.stage < stage)

    def _start(self, each: _Supervised) -> Transition:
        each.num_starts += 1
        try:
            each.part.start()
        except StemcacheError as error:
            return self._fail(each, str(error))
        return self._enter(each, PartState.STARTING)

    def _watch_start(self, each: _Supervised, now_s: float) -> Iterator[Transition]:
        condition = each.part.condition()
        if condition.health is Health.READY:
            yield self._enter(each, PartState.READY)
        elif condition.health is Health.LEFT:
            yield self._leave(each, condition.reason)
        elif condition.health is Health.FAILED:
            yield self._fail(each, condition.reason)
        elif now_s - each.since_s > self._policy.start_timeout_s:
            reason = f"not ready after {self._policy.start_timeout_s:.0f} s"
            yield self._fail(each, f"{reason}; {condition.reason}" if condition.reason else reason)

    def _fail(self, each: _Supervised, reason: str) -> Transition:
        each.num_failures += 1
        if not self._complete:
            raise PreconditionError(f"{each.part.name} did not start: {reason}")
        leftover = self._end(each)
        reason = f"{reason}; {leftover}" if leftover else reason
        each.next_start_s = self._clock.monotonic_s() + self._policy.pause_s(each.num_failures)
        return self._enter(each, PartState.PAUSED, reason)

    def _leave(self, each: _Supervised, reason: str) -> Transition:
        leftover = self._end(each)
        return self._enter(each, PartState.LEFT, f"{reason}; {leftover}" if leftover else reason)

    def _end(self, each: _Supervised) -> str:
        try:
            each.part.stop()
        except Exception as error:  # whatever it is, the other parts have to be stopped too
            return f"did not stop cleanly: {error}"
        return ""

    def _enter(self, each: _Supervised, state: PartState, reason: str = "") -> Transition:
        each.state = state
        each.since_s = self._clock.monotonic_s()
        return Transition(each.part.name, state, reason)
