"""Prefill of SmolLM2 in the paged runner against transformers' own: cold, and with all but the last 32 tokens cached.

    python -m tests.bench.runner_prefill [--tokens 2048] [--threads 1] [--repeats 5] [--chunk 2048]

Both run in this process, by turns, with the same number of threads; transformers with SDPA and DynamicCache. Times are
wall clock, the best and the median of the repeats; ratios are of the best, since other programs only ever add time. On
a busy machine `--clock cpu` counts the CPU time of the calling thread instead, which is all there is with one thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from transformers import DynamicCache, PreTrainedModel

from tests.support.step_driver import Driver, Track
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.hook import HOOK_NAME
from worker.torch_runner.loader import LoadedModel, load_model
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.prepare import prepare_smollm2

WARM_TOKENS = 32


@dataclass
class Times:
    """Seconds of one way."""

    name: str
    cold_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chunk", type=int, default=2048, help="new tokens per step of the paged runner")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu counts one thread; use --threads 1")
    now = time.perf_counter if arguments.clock == "wall" else time.thread_time
    model = load_model(prepare_smollm2(arguments.cache_dir, print), arguments.cache_dir)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, model.vocab_size, (arguments.tokens,), generator=generator).tolist()
    ways = {
        "transformers": transformers_way(model, tokens, arguments.threads, now),
        "paged": paged_way(model, tokens, arguments.chunk, arguments.threads, now, kernel="fastest"),
        "paged without kernel": paged_way(model, tokens, arguments.chunk, arguments.threads, now, kernel="gather"),
    }
    times = {name: Times(name) for name in ways}
    for _ in range(arguments.repeats):
        for name, run in ways.items():
            cold_s, warm_s = run()
            times[name].cold_s.append(cold_s)
            times[name].warm_s.append(warm_s)
    report(list(times.values()), arguments.tokens)
    return 0


Clock = Callable[[], float]


def transformers_way(
    model: LoadedModel, tokens: list[int], threads: int, now: Clock
) -> Callable[[], tuple[float, float]]:
    """Cold, then the last tokens again on the cropped cache: no copies beside those that DynamicCache itself makes."""
    module: PreTrainedModel = model.module
    ids = torch.tensor([tokens])

    @torch.inference_mode()
    def run() -> tuple[float, float]:
        torch.set_num_threads(threads)
        module.set_attn_implementation("sdpa")
        cache = DynamicCache(config=module.config)
        start = now()
        int(module(ids, cache=cache, logits_to_keep=1).logits.argmax())
        middle = now()
        cache.crop(-WARM_TOKENS)
        again = now()
        int(module(ids[:, -WARM_TOKENS:], cache=cache, logits_to_keep=1).logits.argmax())
        stop = now()
        module.set_attn_implementation(HOOK_NAME)
        return middle - start, stop - again

    return run


def paged_way(
    model: LoadedModel, tokens: list[int], chunk: int, threads: int, now: Clock, kernel: str
) -> Callable[[], tuple[float, float]]:
    """Cold in chunks, then the last tokens again on the blocks of the first."""
    attention = fastest_attention(model, threads) if kernel == "fastest" else GatherAttention()
    runner = PagedRunner(model, 2 * -(-len(tokens) // 16) + 4, attention, num_threads=threads)

    def run() -> tuple[float, float]:
        torch.set_num_threads(threads)
        driver = Driver(runner)
        first = driver.start(tokens)
        start = now()
        compute(driver, first, chunk)
        middle = now()
        second = driver.start(tokens, prefix_of=first, num_shared=len(tokens) - WARM_TOKENS)
        again = now()
        driver.step((second, WARM_TOKENS))
        return middle - start, now() - again

    return run


def compute(driver: Driver, track: Track, chunk: int) -> None:
    while track.computed < track.num_prompt:
        driver.step((track, min(chunk, track.num_prompt - track.computed)))


def report(ways: list[Times], num_tokens: int) -> None:
    base = ways[0]
    print(f"\n{num_tokens} tokens, the last {WARM_TOKENS} new when warm; seconds as best / median")
    print(f"{'':22}{'cold':>16}{'ratio':>8}{'warm':>18}{'ratio':>8}{'cold / warm':>13}")
    for way in ways:
        cold, warm = min(way.cold_s), min(way.warm_s)
        print(
            f"{way.name:22}{cold:8.3f} / {median(way.cold_s):5.3f}{cold / min(base.cold_s):8.2f}"
            f"{warm:10.4f} / {median(way.warm_s):6.4f}{warm / min(base.warm_s):7.2f}{cold / warm:13.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
