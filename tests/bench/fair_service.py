"""A tenant's time to the first token beside a flood, on the real model: `python -m tests.bench.fair_service`.

SmolLM2 in one engine, no network. The tenant sends the same requests three times: alone; alone on a worker of half the
speed (every step is followed by a pause as long as itself), half the pool and half the places; and on the whole worker
beside a tenant of equal weight that sends 16 times as many requests, much longer ones. Open loop: times count from when
a request was meant to be sent. Prompts are random, so that nothing is reused.
"""

from __future__ import annotations

import argparse
import sys
import time

from cache_store.clock import SystemClock
from cache_store.transfers import Transfers
from tests.bench.figures import conditions, spread
from tests.support.simulation import Outcome, Traffic, drive
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.model_files.digests import default_cache_dir
from worker.runner import ModelInfo, Runner
from worker.step_plan import StepPlan, StepResult
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import load_model
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.prepare import prepare_smollm2

NUM_BLOCKS, NUM_PLACES = 2_048, 32


class SlowerRunner:
    """Runs each step as long as it would take with a part of the speed."""

    def __init__(self, inner: Runner, part: float) -> None:
        self._inner = inner
        self._pause = 1 / part - 1

    @property
    def info(self) -> ModelInfo:
        return self._inner.info

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    @property
    def num_slots(self) -> tuple[int, ...]:
        return self._inner.num_slots

    @property
    def transfers(self) -> Transfers:
        return self._inner.transfers

    def run(self, plan: StepPlan) -> StepResult:
        begin_s = time.monotonic()
        result = self._inner.run(plan)
        time.sleep((time.monotonic() - begin_s) * self._pause)
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0, help="of arrivals, each of three times")
    parser.add_argument("--rate", type=float, default=0.4, help="requests per second of the tenant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tenant = Traffic("tenant", arguments.rate, (64, 256), (8, 24))
    flood = Traffic("flood", 16 * arguments.rate, (512, 1_024), (8, 64))
    cases = (
        ("alone", 1.0, [tenant]),
        ("alone, half of everything", 0.5, [tenant]),
        ("beside the flood", 1.0, [tenant, flood]),
    )
    outcomes = {name: run(part, traffic, arguments)["tenant"] for name, part, traffic in cases}
    print(f"SmolLM2-135M, {arguments.step_tokens} tokens a step, {conditions(arguments.threads)}")
    print(f"tenant: {arguments.rate:g} requests/s of 64-256 tokens; flood: {flood.requests_per_s:g}/s of 512-1024")
    for name, outcome in outcomes.items():
        print(f"  {name:26} {len(outcome.ttft_s):4} requests  TTFT {spread(outcome.ttft_s)}")
    half, beside = outcomes["alone, half of everything"], outcomes["beside the flood"]
    for percent in (50, 95, 99):
        print(f"  p{percent} beside the flood / alone with half: {_ratio(beside, half, percent):.2f}")
    return 0


def run(part: float, traffic: list[Traffic], arguments: argparse.Namespace) -> dict[str, Outcome]:
    """One pass on a fresh engine."""
    cache_dir = default_cache_dir()
    model = load_model(prepare_smollm2(cache_dir, print), cache_dir)
    attention = fastest_attention(model, arguments.threads, cache_dir)
    paged = PagedRunner(model, int(NUM_BLOCKS * part), attention, num_threads=arguments.threads)
    config = EngineConfig(num_step_tokens=arguments.step_tokens, num_max_sequences=int(NUM_PLACES * part))
    clock = SystemClock()
    engine = Engine(SlowerRunner(paged, part), clock, config)
    return drive(engine, clock, time.sleep, traffic, arguments.seconds, arguments.seed)


def _ratio(a: Outcome, b: Outcome, percent: float) -> float:
    return a.percentile_s(percent) / b.percentile_s(percent)


if __name__ == "__main__":
    sys.exit(main())
