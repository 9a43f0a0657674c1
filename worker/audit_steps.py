"""The steps in which an idle engine checks what it has cached (`worker/audit.py`): plan → run → judge → give back.

Each leaves the engine as idle as it was. Owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from cache_store.errors import StemcacheError
from worker.audit import Audits
from worker.rate import RateMeter
from worker.scheduler import Schedule, Scheduler
from worker.step_plan import RowFailure, StepResult

Run = Callable[[Schedule], StepResult | StemcacheError]
"""Runs the plan of a schedule; what it costs is charged to its sequences."""


class AuditSteps:
    """Of one engine."""

    def __init__(self, audits: Audits, scheduler: Scheduler, num_step_tokens: int, rate: RateMeter, run: Run) -> None:
        self._audits = audits
        self._scheduler = scheduler
        self._num_step_tokens = num_step_tokens
        self._rate = rate
        self._run = run

    def step(self) -> None:
        """Checks a part of a sampled hit, if there is one and room for it."""
        next_one = self._audits.next_sequence(self._rate.tokens_per_s, self._num_step_tokens)
        if next_one is None:
            return
        sequence, num_checked = next_one
        plan = self._scheduler.schedule_alone(sequence, num_checked)
        if plan is None:
            self._audits.skip()
            return
        plan = self._audits.compare(plan, (sequence,))
        schedule = Schedule(plan, (), ())  # nobody is charged for it
        result = self._run(schedule)
        if isinstance(result, StemcacheError):
            self._audits.forget()
            self._scheduler.fail_step(schedule)
            self._audits.skip()
        elif isinstance(result.outcomes[0], RowFailure):
            self._audits.forget()
            self._audits.skip()
        elif self._audits.judge(result):
            self._scheduler.commit(sequence, len(plan.rows[0].token_ids))
            self._audits.note_checked(sequence.num_computed)
        else:
            self._audits.end()
        self._scheduler.drop_alone(sequence)
