"""Time per decode step against context, by kind of cache, and the memory of caches for requests of mixed length.

`python -m tests.bench.step`. SmolLM2, one sequence. With a cache a step reads weights and keys and values, so its time
is nearly flat; without one it computes the whole context again; a cache that concatenates copies all it has for each
token. Every round measures all kinds at all contexts in turn; ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tests.bench.concatenation import count_copied_tokens
from tests.bench.figures import conditions, median_ratio, spread
from tests.bench.step_memory import memory_lines
from tests.support.step_driver import Driver
from worker.model_files.digests import default_cache_dir
from worker.runner import Runner
from worker.torch_runner.contiguous import ContiguousRunner
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel, load_model
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.prepare import prepare_smollm2

CONTEXTS = (128, 512, 1024, 2048)
KINDS = ("paged", "contiguous", "concatenating", "without cache")
BLOCK_SIZE = 16
NUM_APPENDED = 8192
Step = Callable[[], None]


def our_step(runner: Runner, context: int) -> Step:
    """One more token of a sequence of `context` tokens."""
    driver = Driver(runner)
    track = driver.start([(17 * index + 5) % 40_000 for index in range(context)])
    driver.step((track, context))

    def step() -> None:
        driver.step((track, 1))

    return step


def concatenating_step(module: PreTrainedModel, context: int) -> Step:
    """transformers' own cache, which grows by concatenation."""
    cache = DynamicCache(config=module.config)
    module(torch.arange(context).unsqueeze(0), past_key_values=cache, logits_to_keep=1)

    def step() -> None:
        module(torch.tensor([[7]]), past_key_values=cache, logits_to_keep=1)

    return step


def cacheless_step(module: PreTrainedModel, context: int) -> Step:
    """The whole context, computed again."""
    ids = torch.arange(context).unsqueeze(0)
    return lambda: module(ids, use_cache=False, logits_to_keep=1)


def timed(step: Step) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(
    model: LoadedModel, plain: PreTrainedModel, rounds: int, cacheless_rounds: int, threads: int
) -> dict[tuple[str, int], list[float]]:
    """Seconds by (kind, context). Every round measures all of them once, so that ratios are of the same moment."""
    attention = fastest_attention(model, threads)
    steps: dict[tuple[str, int], Step] = {}
    for context in CONTEXTS:
        room = context + rounds + 8
        paged = PagedRunner(model, -(-room // BLOCK_SIZE) + 1, attention, BLOCK_SIZE, num_threads=threads)
        steps["paged", context] = our_step(paged, context)
        steps["contiguous", context] = our_step(ContiguousRunner(model, 1, room, num_threads=threads), context)
        steps["concatenating", context] = concatenating_step(plain, context)
        steps["without cache", context] = cacheless_step(plain, context)
    times: dict[tuple[str, int], list[float]] = {case: [] for case in steps}
    for round_number in range(-1, rounds):
        for case, step in steps.items():
            if case[0] == "without cache" and not 0 <= round_number < cacheless_rounds:
                continue
            seconds = timed(step)
            if round_number >= 0:
                times[case].append(seconds)
    return times


def report(times: dict[tuple[str, int], list[float]], weights_bytes: int, bytes_per_token: int) -> None:
    """Prints one block per context."""
    for context in CONTEXTS:
        kv_bytes = bytes_per_token * context
        growth = (weights_bytes + kv_bytes) / (weights_bytes + bytes_per_token * CONTEXTS[0])
        print(f"\ncontext {context}: weights {weights_bytes / 1e6:.0f} MB, keys and values {kv_bytes / 1e6:.1f} MB")
        print(f"  bytes read: {growth:.2f} × those at {CONTEXTS[0]}")
        for kind in KINDS:
            seconds = times[kind, context]
            rounds = len(seconds)
            own = median_ratio(seconds, times[kind, CONTEXTS[0]][:rounds])
            ours = median_ratio(seconds, times["paged", context][:rounds])
            print(f"  {kind:14} {spread(seconds)}   {own:6.2f} × its own at {CONTEXTS[0]}   {ours:7.2f} × paged")


@torch.inference_mode()
def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.step", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of the kinds with a cache (20)")
    parser.add_argument("--cacheless-rounds", type=int, default=2, help="rounds without a cache (2)")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folder = prepare_smollm2(default_cache_dir(), print)
    model = load_model(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    print(f"SmolLM2-135M, one sequence, {arguments.rounds} rounds, {conditions(arguments.threads)}", flush=True)
    times = measure(model, plain, arguments.rounds, arguments.cacheless_rounds, arguments.threads)
    weights_bytes = sum(parameter.numel() for parameter in model.module.parameters()) * 4
    report(times, weights_bytes, model.geometry(BLOCK_SIZE).bytes_per_token)
    copied = count_copied_tokens(NUM_APPENDED)
    print(f"\nappending {NUM_APPENDED:,} tokens one by one: a concatenating cache copies {copied:,} tokens, ours none")
    print("\nmemory for eight requests of mixed length:")
    for line in memory_lines(model):
        print(f"  {line}")


if __name__ == "__main__":
    main()
