"""Stemcache's engine as a side of the benchmark: the runner as a worker builds it, without a network.

    python -m tests.bench.engine.ours MODEL_FOLDER THREADS TOKEN_BUDGET

Times are of the engine: from a request's submission to the step that drew its token. Every step is timed beside what
the runner takes of it.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cache_store.clock import SystemClock
from cache_store.cluster_mac import KEY_BYTES
from cache_store.registry import WorkerId
from cache_store.tokens import pack
from services.version import VERSION
from tests.bench.engine.kernel_ratio import measure_kernel
from tests.bench.engine.memory_read import READ_BYTES, MemoryReader
from tests.bench.peers.answering import Answer, Question, answer_all, random_tokens, reserve_output
from tests.support.domains import make_domain
from tests.support.engines import sampling
from worker.build import build_runner
from worker.config import NumBlocks, WorkerConfig
from worker.engine import Engine
from worker.host import engine_config
from worker.requests import CacheMode, EngineRequest, Failed, Generated, RequestKey, Started
from worker.runner import ModelInfo, Runner
from worker.step_plan import StepPlan, StepResult

POOL_BLOCKS = 2600
"""Of 16 tokens: 1.9 GB of SmolLM2's keys and values."""
TENANT = make_domain("bench")


class TimedRunner:
    """Passes steps on and adds up what they take."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.seconds = 0.0

    def run(self, plan: StepPlan) -> StepResult:
        start = time.perf_counter()
        try:
            return self._inner.run(plan)
        finally:
            self.seconds += time.perf_counter() - start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass(slots=True)
class Step:
    """One that drew tokens, with those before it that drew none."""

    seconds: float
    runner_s: float
    num_tokens: int


@dataclass(slots=True)
class Served:
    """What some requests took together."""

    steps: list[Step] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        return sum(step.seconds for step in self.steps)


class Ours:
    """An engine that lives through all questions."""

    def __init__(self, folder: Path, threads: int, token_budget: int) -> None:
        config = WorkerConfig(
            WorkerId("bench"),
            "bench",
            "redis://nowhere",  # never connected to
            bytes(KEY_BYTES),
            NumBlocks(POOL_BLOCKS),
            model_folder=folder,
            torch_threads=threads,
            token_budget=token_budget,
        )
        self._runner = TimedRunner(build_runner(config))
        self._engine = Engine(self._runner, SystemClock(), engine_config(config))
        self._keys = itertools.count()

    def prefill(self, question: Question) -> Answer:
        """Cold, then the same beginning with other last tokens."""
        num_new = question["num_new"]
        prompt = self._tokens(question["seed"], question["context"])
        cold = self._serve([prompt], 1)
        warm = self._serve([[*prompt[:-num_new], *self._tokens(question["seed"] + 1, num_new)]], 1)
        return {"cold_s": cold.total_s, "warm_s": warm.total_s, "cached": [cold.cached, warm.cached]}

    def decode(self, question: Question) -> Answer:
        """One sequence; after every step a look at the memory's speed, which changes where others use it too."""
        prompt = self._tokens(question["seed"], question["context"])
        skipped, read_s = 1 + question["num_skipped"], list[float]()
        reader = MemoryReader()
        served = self._serve([prompt], skipped + question["num_decoded"], lambda: read_s.append(reader.read_s()))
        speeds = [READ_BYTES / seconds for seconds in read_s[skipped:]]
        step_s = [step.seconds for step in served.steps[skipped:]]
        return {"step_s": step_s, "read_bytes_per_s": speeds, "cached": served.cached}

    def batch(self, question: Question) -> Answer:
        """Requests that share a beginning, which is cold and then warm."""
        shared = self._tokens(question["seed"], question["shared"])
        cold, warm = (self._serve(self._batch(shared, question, salt), question["output"]) for salt in (1, 2))
        return {"cold_s": cold.total_s, "warm_s": warm.total_s, "cached": [cold.cached, warm.cached]}

    def overhead(self, question: Question) -> Answer:
        """Decode steps of many requests: of each, the part that is not the runner's."""
        shared = self._tokens(question["seed"], question["context"] - 16)
        prompts = [[*shared, *self._tokens(question["seed"] + 100 + each, 16)] for each in range(question["rows"])]
        served = self._serve(prompts, 4 + question["num_decoded"])
        full = [step for step in served.steps if step.num_tokens == len(prompts)][1:-1]
        return {"step_s": [step.seconds for step in full], "runner_s": [step.runner_s for step in full]}

    def kernel(self, question: Question) -> Answer:
        """Attention alone."""
        return measure_kernel(question["rows"], question["context"], question["calls"], question["threads"])

    def _batch(self, shared: list[int], question: Question, salt: int) -> list[list[int]]:
        seed = question["seed"] + 100 * salt
        return [[*shared, *self._tokens(seed + each, question["own"])] for each in range(question["requests"])]

    def _tokens(self, seed: int, number: int) -> list[int]:
        return random_tokens(seed, number, self._runner.info.vocab_size)

    def _serve(
        self, prompts: Sequence[Sequence[int]], num_output: int, between: Callable[[], None] = lambda: None
    ) -> Served:
        """`between` is called after every step that drew tokens; its time does not count."""
        served = Served()
        last, runner_s = time.perf_counter(), self._runner.seconds
        for prompt in prompts:
            key = RequestKey(next(self._keys))
            draws = sampling(max_tokens=num_output)
            self._engine.submit(EngineRequest(key, TENANT, pack(prompt), draws, 1, CacheMode.READ_WRITE))
        while self._engine.has_work:
            outputs = self._engine.step()
            failed = next((output.error for output in outputs if isinstance(output, Failed)), None)
            if failed is not None:
                raise failed
            served.cached += [output.cached.total for output in outputs if isinstance(output, Started)]
            num_tokens = sum(len(output.token_ids) for output in outputs if isinstance(output, Generated))
            if num_tokens:
                now = time.perf_counter()
                served.steps.append(Step(now - last, self._runner.seconds - runner_s, num_tokens))
                between()
                last, runner_s = time.perf_counter(), self._runner.seconds
        return served


def info(folder: Path, model: ModelInfo, threads: int, token_budget: int) -> Answer:
    """What is measured, and the bytes that a decode step reads at least."""
    config = json.loads((folder / "config.json").read_text())
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not config.get("tie_word_embeddings"):
        weights -= 4 * config["vocab_size"] * config["hidden_size"]  # the embedding is looked up, not read
    return {
        "version": VERSION,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "settings": f"engine and runner as in a worker, token budget {token_budget}, {POOL_BLOCKS} blocks",
        "weights_bytes": weights,
        "kv_bytes_per_token": model.geometry.bytes_per_token,
    }


def main() -> None:
    write = reserve_output()
    folder, threads, token_budget = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    side = Ours(folder, threads, token_budget)
    handlers = {
        "prefill": side.prefill,
        "decode": side.decode,
        "batch": side.batch,
        "overhead": side.overhead,
        "kernel": side.kernel,
    }
    answer_all(write, info(folder, side._runner.info, threads, token_budget), handlers)


if __name__ == "__main__":
    main()
