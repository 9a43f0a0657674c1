"""Counts what an engine does: plain numbers, added to by the engine's thread after each step.

Whoever shows them reads them from another thread without a lock: each number is whole, and two of them may be a step
apart. Counts since the worker's start; nothing here knows a tenant.
"""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.telemetry.histogram import LATENCY_S, TOKEN_S, Histogram
from worker.requests import EngineOutput, Failed, Finish, Finished, Generated, Started
from worker.step_plan import SequenceId, StepPlan, StepResult


class Meter:
    """Of one engine. Implements `worker.threaded_engine.StepWatch`."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.schedule_s = self.forward_s = self.sample_s = self.commit_s = 0.0
        """Parts of steps: until the runner is called; the runner without drawing; drawing; after the runner."""
        self.prompt_tokens = self.prefill_tokens = self.generated_tokens = 0
        self.cached_tokens = [0, 0, 0, 0]
        """Of the device, the host, the disk, and other workers."""
        self.num_started = self.num_failed = self.preemptions = self.recomputed_tokens = 0
        self.queue_s = self.preempted_s = self.recompute_s = self.swap_s = 0.0
        self.finishes = {Finish.STOP: 0, Finish.LENGTH: 0}
        """Samples that ended so."""
        self.step = Histogram(TOKEN_S)
        self.token_gap = Histogram(TOKEN_S)
        """Between two tokens of a sequence."""
        self.first_token = Histogram(LATENCY_S)
        self.request = Histogram(LATENCY_S)
        self.queue = Histogram(LATENCY_S)
        self.prefill = Histogram(LATENCY_S)
        self.decode = Histogram(LATENCY_S)
        self._drew: set[SequenceId] = set()
        """Sequences that got a token in the last step: one that decodes is in every step."""
        self._ran = (0.0, 0.0)
        """Begin and end of the last step that the runner computed."""

    def ran(self, plan: StepPlan, result: StepResult, began_s: float, ended_s: float) -> None:
        """The runner has executed a plan."""
        num_prefill = num_decodes = 0
        drew, self._drew = self._drew, set()
        for row in plan.rows:
            if row.sequence in drew:
                num_decodes += 1
            else:
                num_prefill += len(row.token_ids)
            if row.draws:
                self._drew.add(row.sequence)
        self.prefill_tokens += num_prefill
        self.forward_s += ended_s - began_s - result.draw_s
        self.sample_s += result.draw_s
        if num_decodes:
            self.token_gap.observe(ended_s - self._ran[1], num_decodes)
        self._ran = (began_s, ended_s)

    def stepped(self, began_s: float, ended_s: float, outputs: Sequence[EngineOutput]) -> None:
        """See StepWatch."""
        run_began_s, run_ended_s = self._ran
        if run_began_s >= began_s:
            self.num_steps += 1
            self.step.observe(ended_s - began_s)
            self.schedule_s += run_began_s - began_s
            self.commit_s += ended_s - run_ended_s
        else:  # nothing to compute
            self.schedule_s += ended_s - began_s
        for output in outputs:
            if isinstance(output, Generated):
                self.generated_tokens += len(output.token_ids)
                if output.finish is not None:
                    self.finishes[output.finish] += 1
            elif isinstance(output, Started):
                self._note_started(output)
            elif isinstance(output, Finished):
                self._note_finished(output)
            else:
                self._note_failed(output)

    def _note_started(self, output: Started) -> None:
        cached = output.cached
        self.num_started += 1
        self.prompt_tokens += output.prompt_tokens
        for at, num_tokens in enumerate((cached.device, cached.host, cached.disk, cached.peer)):
            self.cached_tokens[at] += num_tokens

    def _note_finished(self, output: Finished) -> None:
        self.queue.observe(output.queue_s)
        self.prefill.observe(output.prefill_s)
        self.decode.observe(output.decode_s)
        self.first_token.observe(output.queue_s + output.prefill_s)
        self.request.observe(output.queue_s + output.prefill_s + output.decode_s)
        self.queue_s += output.queue_s
        self.preemptions += output.preemptions
        self.preempted_s += output.preempted_s
        self.recompute_s += output.recompute_s
        self.recomputed_tokens += output.recomputed_tokens
        self.swap_s += output.swap_s

    def _note_failed(self, _: Failed) -> None:
        self.num_failed += 1
