"""What quantised keys and values cost in exactness and bring in room, on SmolLM2 against float32 ones.

    python -m tests.bench.kv [--prompts 8] [--tokens 100] [--threads 1]

Chats of the proof, greedy. Logits are compared while all formats are fed the float32 answer, so that one differing
token does not change all that follow; then each format answers by itself. Room is taken from the pools as allocated.
At last the rounding alone, of the float32 keys and values that lie in the pool: by what shares a scale, and in 4 bits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from cache_store.kv_layout import KvDtype
from tests.bench.figures import conditions
from tests.proof.cases import smollm2_case
from tests.support.step_driver import Driver, Track
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.kv_elements import dequantise, quantise
from worker.torch_runner.loader import LoadedModel, load_model, with_kv_dtype
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.prepare import prepare_smollm2

FORMATS = (KvDtype.INT8, KvDtype.FLOAT8)
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one format to all prompts."""

    tokens: list[list[int]]
    logits: list[Tensor]
    """[tokens, vocabulary] each."""
    runner: PagedRunner


def answer(
    model: LoadedModel, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int, fed: list[list[int]] | None
) -> Answers:
    """All prompts as one batch; `fed` is what every token but the first follows instead of the drawn ones."""
    drivers: list[Driver] = []
    blocks = sum(-(-(len(prompt) + num_tokens) // _BLOCK_SIZE) for prompt in prompts)
    runner = PagedRunner(
        model,
        blocks,
        fastest_attention(model, threads),
        _BLOCK_SIZE,
        num_threads=threads,
        fill=float("nan"),
        observer=lambda plan, logits: drivers[0].observe(plan, logits),
    )
    drivers.append(Driver(runner))
    tracks = [drivers[0].start(prompt) for prompt in prompts]
    for track, prompt in zip(tracks, prompts, strict=True):
        drivers[0].step((track, len(prompt)))
    for step in range(num_tokens - 1):
        _feed(tracks, fed, step)
        drivers[0].decode(tracks, 1)
    return Answers([track.answer for track in tracks], [torch.stack(track.logits) for track in tracks], runner)


def _feed(tracks: Sequence[Track], fed: list[list[int]] | None, step: int) -> None:
    for index, track in enumerate(tracks):
        if fed is not None:
            track.tokens[-1] = fed[index][step]


def agreement(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    return next((index for index, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]), len(left))


def compare(model: LoadedModel, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> PagedRunner:
    """Prints a line for each format; returns the float32 runner, whose pool still holds everything."""
    exact = answer(model, prompts, num_tokens, threads, None)
    scale = float(torch.cat(exact.logits).std())
    block = exact.runner.pools.size_bytes / exact.runner.num_blocks
    print(f"float32: {block / _BLOCK_SIZE / 1024:.1f} KiB per token; its logits deviate by {scale:.2f} from their mean")
    for dtype in FORMATS:
        stored = with_kv_dtype(model, dtype)
        fed = answer(stored, prompts, num_tokens, threads, exact.tokens)
        free = answer(stored, prompts, num_tokens, threads, None)
        ratio = block / (free.runner.pools.size_bytes / free.runner.num_blocks)
        agreed = [agreement(*pair) for pair in zip(free.tokens, exact.tokens, strict=True)]
        print(f"{dtype}: {ratio:.2f} times as many tokens in the same memory; {_distance(fed.logits, exact.logits)}")
        print(
            f"  by itself {sum(count == num_tokens for count in agreed)} of {len(agreed)} answers are equal; "
            f"{sum(agreed) / len(agreed):.0f} of {num_tokens} tokens come before the first that differs"
        )
    return exact.runner


def _distance(some: list[Tensor], exact: list[Tensor]) -> str:
    """Of logits after the same tokens."""
    left, right = torch.cat(some), torch.cat(exact)
    difference = left - right
    divergence = kl_div(left.log_softmax(1), right.log_softmax(1), log_target=True, reduction="none").sum(1).mean()
    return (
        f"logits differ by {difference.abs().max():.3f} at most, {difference.square().mean().sqrt():.4f} RMS, "
        f"{divergence:.1e} nats; {(left.argmax(1) == right.argmax(1)).float().mean():.2%} have the same largest"
    )


def rounding(runner: PagedRunner) -> None:
    """Prints the error of rounding alone, RMS over RMS of what is rounded."""
    group = runner.pools.groups[0]
    written = group.bytes.view(torch.float32).isfinite().all(1)  # whole blocks only
    for name, part in (("keys", group.keys), ("values", group.values)):
        rows = part[written].float()  # [blocks, layers, tokens, heads, width]
        whole = rows.permute(0, 1, 3, 2, 4).flatten(3)  # a block's tokens of one head share a scale
        fine = rows.unflatten(-1, (-1, 16))
        errors = {
            "int8, a scale per token and head": _error(rows, *quantise(rows, torch.int8)),
            "int8, a scale per block and head": _error(whole, *quantise(whole, torch.int8)),
            "fp8, a scale per token and head": _error(rows, *quantise(rows, torch.float8_e4m3fn)),
            "fp8, a scale per block and head": _error(whole, *quantise(whole, torch.float8_e4m3fn)),
            "4 bit, a scale per token and head": _error_of_4_bit(rows),
            "4 bit, a scale per 16 elements": _error_of_4_bit(fine),
        }
        print(f"{name}, {len(rows)} blocks: " + "; ".join(f"{key} {value:.2%}" for key, value in errors.items()))


def _error(rows: Tensor, elements: Tensor, scales: Tensor) -> float:
    return float(
        (dequantise(elements, scales, torch.float32) - rows).square().mean().sqrt() / rows.square().mean().sqrt()
    )


def _error_of_4_bit(rows: Tensor) -> float:
    scales = rows.abs().amax(-1) / 7
    elements = (rows / scales.clamp_min(1e-30).unsqueeze(-1)).round()
    return _error(rows, elements, scales)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    arguments = parser.parse_args()
    model = load_model(prepare_smollm2(arguments.cache_dir, print), arguments.cache_dir, num_threads=arguments.threads)
    prompts = smollm2_case(model.folder.path).prompts[-arguments.prompts :]
    print(f"SmolLM2, {len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens, ", end="")
    print(f"{arguments.tokens} greedy tokens each; {conditions(arguments.threads)}")
    rounding(compare(model, prompts, arguments.tokens, arguments.threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
