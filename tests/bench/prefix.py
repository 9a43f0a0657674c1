"""TTFT cold and warm through the full path client → router → worker, against transformers doing the same.

`python -m tests.bench.prefix`. SmolLM2, one worker, prompts of random tokens. Cold: a prompt nobody has sent. Warm: the
same prompt with other last 32 tokens, so that all but those are cached. transformers (SDPA, its own cache) computes the
same prompt in this process with as many threads; its warm run goes on with a cache that was cut back, at no cost.
All four are measured in turn in every round, and each round has prompts of its own. The first round is not counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from services.client import (
    AdminClient,
    Delta,
    GenerationFinished,
    GenerationRequest,
    Sampling,
    StemcacheClient,
    Tokens,
)
from services.cluster.data_folder import DataFolder
from services.cluster.launch import LaunchOptions, running_system
from services.cluster.stop_signals import StopSignals
from tests.bench.figures import conditions, median_ratio, spread
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.prepare import prepare_smollm2

LENGTHS = (1024, 2048, 4096)
NUM_NEW = 32
NUM_ROUTER_CALLS = 200
KINDS = ("cold", "warm", "transformers cold", "transformers warm")


@dataclass(slots=True)
class Samples:
    """Seconds of every round."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    router: list[float] = field(default_factory=list)
    """Client's TTFT without the worker's queue and prefill."""


class Baseline:
    """transformers with its own cache."""

    def __init__(self, folder: Path) -> None:
        self._module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()

    @torch.inference_mode()
    def cold_and_warm(self, prompt: tuple[int, ...], tail: tuple[int, ...]) -> tuple[float, float]:
        """Seconds to the first token of `prompt`, and of the same prompt ending in `tail` with the rest cached."""
        cache = DynamicCache(config=self._module.config)
        cold = self._first_token(prompt, cache)
        cache.crop(-len(tail))
        return cold, self._first_token(tail, cache)

    def _first_token(self, tokens: tuple[int, ...], cache: DynamicCache) -> float:
        start = time.perf_counter()
        output = self._module(torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        int(output.logits[0, -1].argmax())
        return time.perf_counter() - start


def time_to_first_token(client: StemcacheClient, prompt: tuple[int, ...], expect_cached: int) -> tuple[float, float]:
    """Seconds to the first token at the client, and of them what was not the worker's. Checks the cached tokens."""
    start = time.perf_counter()
    first = None
    for event in client.stream(GenerationRequest(Tokens(prompt), Sampling(temperature=0.0, max_tokens=1))):
        if isinstance(event, Delta) and first is None:
            first = time.perf_counter() - start
        if isinstance(event, GenerationFinished):
            assert event.usage.cached_tokens == expect_cached, f"{event.usage.cached_tokens} tokens were cached"
            worker = event.timings.queue_s + event.timings.prefill_s
    assert first is not None
    return first, first - worker


def measure(client: StemcacheClient, baseline: Baseline, length: int, rounds: int, rng: random.Random) -> Samples:
    """All four kinds, in turn."""
    samples = Samples()
    for round_number in range(-1, rounds):
        prompt = tuple(rng.randrange(10, 40_000) for _ in range(length))
        tail = tuple(40_000 + rng.randrange(1000) for _ in range(NUM_NEW))
        cold, _ = time_to_first_token(client, prompt, 0)
        warm, router = time_to_first_token(client, (*prompt[:-NUM_NEW], *tail), length - NUM_NEW)
        base_cold, base_warm = baseline.cold_and_warm(prompt, tail)
        if round_number >= 0:
            for kind, seconds in zip(KINDS, (cold, warm, base_cold, base_warm), strict=True):
                samples.by_kind[kind].append(seconds)
            samples.router.append(router)
    return samples


def report(length: int, samples: Samples) -> None:
    """Prints one length."""
    cold, warm, base_cold, base_warm = (samples.by_kind[kind] for kind in KINDS)
    print(f"\n{length} tokens, {len(cold)} rounds")
    for kind, seconds in samples.by_kind.items():
        print(f"  {kind:18} {spread(seconds)}")
    print(f"  warm / cold {statistics.median(warm) / statistics.median(cold):.4f} = 1/{median_ratio(cold, warm):.1f}")
    print(f"  cold / transformers cold {median_ratio(cold, base_cold):.2f}")
    print(f"  warm / transformers warm {median_ratio(warm, base_warm):.2f}")
    print(f"  client, router and wire of the warm request: {spread(samples.router)}", flush=True)


def router_share(client: StemcacheClient, length: int, rng: random.Random) -> list[float]:
    """What client, router and wire add to a warm request, over many of them."""
    prompt = tuple(rng.randrange(10, 40_000) for _ in range(length))
    time_to_first_token(client, prompt, 0)
    return [time_to_first_token(client, prompt, length - 1)[1] for _ in range(NUM_ROUTER_CALLS)]


def main() -> None:
    """Starts a system, measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prefix", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of the worker and of transformers (2)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    arguments = parser.parse_args()
    folder = prepare_smollm2(default_cache_dir(), print)
    torch.set_num_threads(arguments.threads)
    rng = random.Random(time.time_ns())
    with tempfile.TemporaryDirectory(prefix="stemcache-bench-") as data, StopSignals() as stop:
        options = LaunchOptions(
            DataFolder(Path(data)), default_cache_dir(), num_workers=1, port=0, admin_port=0,
            torch_threads=arguments.threads,
        )  # fmt: skip
        with running_system(options, stop, print) as system:
            with AdminClient(system.admin_address, system.admin_token) as admin:
                admin.create_tenant("bench")
                key = admin.create_api_key("bench").secret
            baseline = Baseline(folder)
            with StemcacheClient(system.address, key) as client:
                print(f"SmolLM2-135M, one worker, {NUM_NEW} new tokens when warm, {conditions(arguments.threads)}")
                for length in arguments.lengths:
                    report(length, measure(client, baseline, length, arguments.rounds, rng))
                share = router_share(client, arguments.lengths[0], rng)
                print(f"\nclient, router and wire over {len(share)} warm requests: {spread(share)}")


if __name__ == "__main__":
    main()
