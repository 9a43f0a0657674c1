"""Our own kernels against transformers' modules, in one runner each on one model: steps of decoding, and prefill.

The third way is what --deterministic costs: the fused forward has one order of additions anyway, its attention has not.

    python -m tests.bench.forward [--threads 2] [--rounds 15] [--contexts 1024 4096] [--batches 1 8 32] [--prefill 1024]

SmolLM2. Every round measures the reading of 256 MiB by as many threads (the roofline), then each case by both forwards.
A step of decoding reads the weights once and the keys and values of each row: its share of the roofline is the time
that these bytes take at that speed, of the time of the step. Ratios are medians over rounds, of the same moment.
`--clock cpu` counts the CPU time of the one thread: for busy machines, where wall clock says little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tests.bench.figures import conditions, median_ratio, percentile, spread
from worker.model_files.digests import default_cache_dir
from worker.step_plan import Draw, Row, SequenceId, StepPlan
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.compiler import find_compiler
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel, load_model
from worker.torch_runner.native_attention import NativeAttention
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.prepare import prepare_smollm2

BLOCK_SIZE = 16
CHUNK = 512
WARM_TOKENS = 32
READ_BYTES = 256 << 20
GREEDY = Draw(sample_index=0, position=0, temperature=0.0, top_p=1.0, top_k=0, seed=0, banned=())
Clock = Callable[[], float]
Times = dict[str, list[float]]


def row(number: int, start: int, count: int, blocks: int) -> Row:
    """New tokens of a sequence that owns blocks of its own."""
    first = number * blocks
    used = -(-(start + count) // BLOCK_SIZE)
    tokens = tuple((17 * position + 5 + number) % 40_000 for position in range(start, start + count))
    return Row(SequenceId(number), tokens, start, (tuple(range(first, first + used)),), (GREEDY,))


def plan(*rows: Row) -> StepPlan:
    """A step of nothing but these rows."""
    return StepPlan(rows, (), (), ())


def prefill_plans(context: int, blocks: int, start: int = 0) -> list[StepPlan]:
    """One sequence's prompt in steps."""
    return [plan(row(0, low, min(CHUNK, context - low), blocks)) for low in range(start, context, CHUNK)]


def timed(clock: Clock, runner: PagedRunner, plans: list[StepPlan]) -> float:
    """Seconds of all plans."""
    start = clock()
    for each in plans:
        runner.run(each)
    return clock() - start


def cases(batches: list[int], contexts: list[int], prefill: int, blocks: int) -> dict[str, list[StepPlan]]:
    """Plans by name. A step of decoding writes the last token of each row anew, so that it can be repeated."""
    found: dict[str, list[StepPlan]] = {}
    for context in contexts:
        for batch in batches:
            if batch == 1 or context == contexts[0]:
                rows = [row(number, context - 1, 1, blocks) for number in range(batch)]
                found[f"decode {batch} × {context}"] = [plan(*rows)]
    found[f"prefill {prefill}"] = prefill_plans(prefill, blocks)
    found[f"{WARM_TOKENS} new after {prefill - WARM_TOKENS}"] = prefill_plans(prefill, blocks, prefill - WARM_TOKENS)
    return found


def bytes_read(model: LoadedModel, name: str) -> int:
    """Of weights, keys and values in a step of decoding; 0 where it is none. A tied head is read once."""
    if not name.startswith("decode"):
        return 0
    batch, context = (int(word) for word in name.removeprefix("decode ").split(" × "))
    embedding = model.module.get_input_embeddings().weight
    weights = sum(each.numel() for each in model.module.parameters()) * 4
    if model.module.get_output_embeddings().weight is not embedding:
        weights -= embedding.numel() * 4
    return weights + batch * context * model.geometry(BLOCK_SIZE).bytes_per_token


def measure(
    runners: dict[str, PagedRunner], plans: dict[str, list[StepPlan]], rounds: int, clock: Clock
) -> tuple[list[float], dict[str, Times]]:
    """Seconds of reading, and by case and forward."""
    memory = torch.ones(READ_BYTES // 4)
    reads: list[float] = []
    times: dict[str, Times] = {name: {forward: [] for forward in runners} for name in plans}
    for number in range(rounds + 1):
        start = clock()
        memory.sum()
        read_s = clock() - start
        taken = {(name, each): timed(clock, runner, plans[name]) for name in plans for each, runner in runners.items()}
        if number:  # the first round warms up
            reads.append(read_s)
            for (name, each), seconds in taken.items():
                times[name][each].append(seconds)
    return reads, times


def report(model: LoadedModel, reads: list[float], times: dict[str, Times]) -> dict[str, object]:
    """Prints, and returns the same as values."""
    speed = READ_BYTES / min(reads)
    print(f"reading 256 MiB: best {speed / 1e9:.1f} GB/s, median {READ_BYTES / percentile(reads, 0.5) / 1e9:.1f} GB/s")
    for name, by_forward in times.items():
        print(f"\n{name}")
        for forward, seconds in by_forward.items():
            ratio = median_ratio(seconds, by_forward["modules"])
            line = f"  {forward:13} {spread(seconds)}  {ratio:5.2f} × modules"
            size = bytes_read(model, name)
            if size:
                shares = (size / speed / min(seconds), size / speed / percentile(seconds, 0.5))
                line += f"   roofline {size / speed * 1e3:.1f} ms: {shares[0]:.2f} best, {shares[1]:.2f} median"
            print(line)
    return {"read_s": reads, "times_s": times}


@torch.inference_mode()
def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.forward", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", type=Path, help="also write the samples there")
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu counts one thread; use --threads 1")
    clock = time.perf_counter if arguments.clock == "wall" else time.thread_time
    fused = load_model(prepare_smollm2(default_cache_dir(), print), num_threads=arguments.threads)
    blocks = -(-max(*arguments.contexts, arguments.prefill) // BLOCK_SIZE)
    runners = {}
    fast = fastest_attention(fused, arguments.threads)
    ways = {"modules": (replace(fused, fused=None), fast), "fused": (fused, fast)}
    if (compiler := find_compiler()) is not None:
        fixed = NativeAttention(compiler, default_cache_dir(), arguments.threads, Order.FIXED)
        ways["deterministic"] = (fused, fixed)
    for name, (model, attention) in ways.items():
        num_blocks = blocks * max(arguments.batches)
        runners[name] = PagedRunner(model, num_blocks, attention, BLOCK_SIZE, num_threads=arguments.threads)
    plans = cases(arguments.batches, arguments.contexts, arguments.prefill, blocks)
    print(f"SmolLM2-135M, {arguments.rounds} rounds, {conditions(arguments.threads)}", flush=True)
    values = report(fused, *measure(runners, plans, arguments.rounds, clock))
    if arguments.json:
        arguments.json.write_text(json.dumps(values))


if __name__ == "__main__":
    main()
