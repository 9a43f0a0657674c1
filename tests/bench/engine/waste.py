"""How much of the blocks that requests hold no token fills: a load of requests through the engine's own books.

Lengths of prompts and outputs are exponentially distributed, nothing is shared, and a fixed number of requests is there
at once. What computes is the token-digest runner, so that thousands of steps take seconds.
"""

from __future__ import annotations

import random
import time
from typing import Any

from cache_store.clock import SystemClock
from cache_store.tokens import pack
from tests.bench.engine.sizes import Waste
from tests.bench.peers.answering import Answer
from tests.support.domains import make_domain
from tests.support.engines import sampling
from worker.digest_runner import INSTANT, DigestRunner, digest_model
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.requests import CacheMode, EngineRequest, Finished, RequestKey
from worker.step_plan import SequenceId, StepPlan, StepResult

BLOCK_SIZE = 16
MAX_TOKENS = 8000
TENANT = make_domain("bench")


class CountingRunner:
    """Passes steps on and knows how many tokens each living sequence has in its blocks."""

    def __init__(self, inner: DigestRunner) -> None:
        self._inner = inner
        self._tokens: dict[SequenceId, int] = {}

    @property
    def num_tokens(self) -> int:
        """Of all that live."""
        return sum(self._tokens.values())

    def run(self, plan: StepPlan) -> StepResult:
        for ended in plan.ended:
            self._tokens.pop(ended, None)
        self._tokens.update((row.sequence, row.kv_length) for row in plan.rows)
        self.observe()
        return self._inner.run(plan)

    def observe(self) -> None:
        """Replaced by who looks on while the step's blocks are held."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def measure_waste(load: Waste, seed: int) -> Answer:
    """Token places held and filled, added up over all steps."""
    rng = random.Random(seed)
    num_blocks = 4 * load.at_once * (load.mean_prompt + load.mean_output) // BLOCK_SIZE + MAX_TOKENS // BLOCK_SIZE
    runner = CountingRunner(DigestRunner(digest_model(block_size=BLOCK_SIZE), num_blocks, INSTANT, time.sleep))
    engine = Engine(runner, SystemClock(), EngineConfig())
    held: list[int] = []
    filled: list[int] = []

    def observe() -> None:
        held.append(engine.num_held_blocks * BLOCK_SIZE)
        filled.append(runner.num_tokens)

    runner.observe = observe
    prompts, outputs = [], []
    num_running = 0
    while len(prompts) < load.requests or engine.has_work:
        while num_running < load.at_once and len(prompts) < load.requests:
            prompts.append(_length(rng, load.mean_prompt))
            outputs.append(_length(rng, load.mean_output))
            tokens = [rng.randrange(1, 30_000) for _ in range(prompts[-1])]
            draws = sampling(max_tokens=outputs[-1])
            key = RequestKey(len(prompts))
            engine.submit(EngineRequest(key, TENANT, pack(tokens), draws, 1, CacheMode.READ_WRITE))
            num_running += 1
        num_running -= sum(isinstance(output, Finished) for output in engine.step())
    return {
        "waste": [1 - used / places for used, places in zip(filled, held, strict=True)],
        "overall": 1 - sum(filled) / sum(held),
        "mean_prompt": sum(prompts) / len(prompts),
        "mean_output": sum(outputs) / len(outputs),
        "num_steps": len(held),
    }


def _length(rng: random.Random, mean: int) -> int:
    return min(MAX_TOKENS // 2, 1 + int(rng.expovariate(1 / mean)))
