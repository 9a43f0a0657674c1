"""Runs prompts through an engine as a mixed batch and keeps tokens, logits and hits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cache_store.clock import SystemClock
from cache_store.domain import Domain
from cache_store.tokens import pack
from tests.proof.cases import NUM_TOKENS
from tests.support.domains import make_domain
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.requests import CacheMode, EngineRequest, Failed, Generated, RequestKey, Started
from worker.runner import Runner
from worker.sampling import SamplingParams
from worker.step_plan import StepPlan

ARRIVALS = 3
"""Steps between the arrivals of two halves, so that prefill meets decode."""


@dataclass(slots=True)
class Observed:
    """What one request gave."""

    tokens: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    logits: list[Tensor] = field(default_factory=list)
    """[vocabulary] of every token, in order."""


class LogitsTap:
    """Keeps the logits of each drawing row by its sequence until the driver takes them."""

    def __init__(self) -> None:
        self.by_position: dict[tuple[int, int], Tensor] = {}

    def __call__(self, plan: StepPlan, logits: Tensor) -> None:
        drawing = [row for row in plan.rows if row.draws]
        for row, values in zip(drawing, logits, strict=True):
            self.by_position[(row.sequence, row.kv_length)] = values.clone()

    def take(self) -> dict[tuple[int, int], Tensor]:
        """All since the last call."""
        taken, self.by_position = self.by_position, {}
        return taken


class Driver:
    """One engine over one runner; submits prompts and steps until all are done."""

    def __init__(self, runner: Runner, tap: LogitsTap, chunk: int, domain: Domain | None = None) -> None:
        self._domain = domain or make_domain("acme", kv_format=runner.info.kv_format.digest())
        self._tap = tap
        self.engine = Engine(runner, SystemClock(), EngineConfig(num_step_tokens=chunk, num_max_sequences=16))
        self._next_key = 0
        self.num_mixed_steps = 0

    def run(
        self, prompts: tuple[tuple[int, ...], ...], mode: CacheMode, num_tokens: int = NUM_TOKENS
    ) -> list[Observed]:
        """Outputs of all prompts, greedy, in order."""
        keys = [self._key() for _ in prompts]
        seen = {key: Observed() for key in keys}
        half = len(prompts) // 2
        for key, prompt in list(zip(keys, prompts, strict=True))[:half]:
            self._submit(key, prompt, mode, num_tokens)
        for _ in range(ARRIVALS):
            self._step(seen)
        for key, prompt in list(zip(keys, prompts, strict=True))[half:]:
            self._submit(key, prompt, mode, num_tokens)
        while self.engine.has_work:
            self._step(seen)
        self.engine.check_invariants()
        return [seen[key] for key in keys]

    def _key(self) -> RequestKey:
        self._next_key += 1
        return RequestKey(self._next_key)

    def _submit(self, key: RequestKey, prompt: tuple[int, ...], mode: CacheMode, num_tokens: int) -> None:
        sampling = SamplingParams(0.0, 1.0, 0, 0, num_tokens, 0, ())
        self.engine.submit(EngineRequest(key, self._domain, pack(prompt), sampling, 1, mode))

    def _step(self, seen: dict[RequestKey, Observed]) -> None:
        outputs = self.engine.step()
        logits = self._tap.take()
        rows = iter(logits.values())
        for output in outputs:
            if isinstance(output, Failed):
                raise output.error
            if isinstance(output, Started):
                seen[output.key].cached_tokens = output.cached.total
            elif isinstance(output, Generated):
                values = next(rows)  # outputs stand in the order of the plan's rows
                assert output.token_ids == (int(values.argmax()),), "logits and outputs are out of step"
                seen[output.key].tokens.extend(output.token_ids)
                seen[output.key].logits.append(values)


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Torch threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
