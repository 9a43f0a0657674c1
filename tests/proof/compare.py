"""One case through every cache, each compared with the reference token by token and logit by logit."""

from __future__ import annotations

from dataclasses import dataclass

from tests.proof.cases import BLOCK_SIZE, NUM_TOKENS, Case
from tests.proof.drive import Driver, LogitsTap, Observed
from tests.proof.reference import Reference
from worker.requests import CacheMode
from worker.torch_runner.contiguous import ContiguousRunner
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner

MAX_LOGIT_DIFFERENCE = 1e-3
POISON = float("nan")


@dataclass(frozen=True, slots=True)
class Line:
    """How one cache did."""

    cache: str
    num_equal: int
    """Outputs whose 100 tokens are the reference's."""
    num_outputs: int
    cached_tokens: int
    logit_difference: float
    """Largest, up to and including each output's first differing token."""
    problems: tuple[str, ...]


def run_contiguous(case: Case, model: LoadedModel, threads: int) -> list[Observed]:
    """Every prompt in a cache of its own, nothing reused."""
    tap = LogitsTap()
    length = max(len(prompt) for prompt in case.prompts) + NUM_TOKENS
    runner = ContiguousRunner(
        model, len(case.prompts), length, BLOCK_SIZE, fill=POISON, num_threads=threads, observer=tap
    )
    return Driver(runner, tap, case.chunk).run(case.prompts, CacheMode.BYPASS)


def paged_driver(case: Case, model: LoadedModel, threads: int) -> Driver:
    """A fresh pool that holds everything, filled with NaN."""
    tap = LogitsTap()
    blocks = 8 + sum(-(-(len(prompt) + NUM_TOKENS) // BLOCK_SIZE) + 1 for prompt in (*case.prompts, case.shared))
    runner = PagedRunner(
        model, blocks, fastest_attention(model, threads), BLOCK_SIZE, fill=POISON, num_threads=threads, observer=tap
    )
    return Driver(runner, tap, case.chunk)


def compare(case: Case, reference: Reference, model: LoadedModel, threads: int) -> list[Line]:
    """Contiguous; paged cold; paged with hits that end at each boundary; paged with whole prompts cached."""
    expected = [reference.generate(prompt) for prompt in case.prompts]
    truth = [reference.logits(prompt, tokens) for prompt, tokens in zip(case.prompts, expected, strict=True)]

    def line(cache: str, outputs: list[Observed], cached: list[int]) -> Line:
        return _judge(case, cache, outputs, expected, truth, cached)

    nothing = [0] * len(case.prompts)
    lines = [line("contiguous", run_contiguous(case, model, threads), nothing)]
    lines.append(line("paged, cold", paged_driver(case, model, threads).run(case.prompts, CacheMode.BYPASS), nothing))
    warm = paged_driver(case, model, threads)
    warm.run((case.shared,), CacheMode.READ_WRITE, num_tokens=1)
    lines.append(line("paged, warm", warm.run(case.prompts, CacheMode.READ_WRITE), list(case.boundaries)))
    whole = [len(prompt) - 1 for prompt in case.prompts]
    lines.append(line("paged, repeated", warm.run(case.prompts, CacheMode.READ_WRITE), whole))
    return lines


def _judge(case: Case, cache: str, outputs: list[Observed], expected, truth, cached: list[int]) -> Line:
    problems = []
    largest = 0.0
    for index, (output, tokens, logits) in enumerate(zip(outputs, expected, truth, strict=True)):
        agreed = next((i for i, (a, b) in enumerate(zip(output.tokens, tokens, strict=True)) if a != b), len(tokens))
        for position in range(min(agreed + 1, len(tokens))):
            largest = max(largest, float((output.logits[position] - logits[position]).abs().max()))
        if agreed < len(tokens):
            problems.append(f"prompt {index}: token {agreed} differs")
        if output.cached_tokens != cached[index]:
            problems.append(f"prompt {index}: {output.cached_tokens} tokens cached, expected {cached[index]}")
        if len(set(output.tokens)) < case.min_distinct:
            problems.append(f"prompt {index}: only {len(set(output.tokens))} distinct tokens")
    if not largest <= MAX_LOGIT_DIFFERENCE:
        problems.append(f"logits differ by {largest:.2e}, allowed are {MAX_LOGIT_DIFFERENCE:.0e}")
    num_equal = sum(output.tokens == tokens for output, tokens in zip(outputs, expected, strict=True))
    return Line(cache, num_equal, len(outputs), sum(o.cached_tokens for o in outputs), largest, tuple(problems))
