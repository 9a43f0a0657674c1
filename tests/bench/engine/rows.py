"""The rows of the table: what is measured, in which unit, and what it is held against."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from enum import StrEnum

OURS = "stemcache"


class Better(StrEnum):
    """Which way a measure is good."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached: of our figure itself, or of its ratio to peers'."""

    limit: float
    against: tuple[str, ...] = ()
    """Peers, of which the best counts; empty: the figure itself."""
    note: str = ""


@dataclass(slots=True)
class Row:
    """One measure and its samples by side, all of the same rounds."""

    measure: str
    unit: str
    better: Better
    goals: tuple[Goal, ...]
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, value: float) -> None:
        """One more round."""
        self.samples.setdefault(side, []).append(value)

    def median(self, side: str) -> float | None:
        """None: not run."""
        values = self.samples.get(side)
        return statistics.median(values) if values else None

    def ratio(self, peer: str) -> float | None:
        """Median over rounds of ours through the peer's, as far as it went; None where either was not run."""
        ours, theirs = self.samples.get(OURS), self.samples.get(peer)
        if not ours or not theirs:
            return None
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))

    def reached(self, goal: Goal) -> float | None:
        """What the goal's limit is compared with; of several peers the one that is hardest to beat."""
        if not goal.against:
            return self.median(OURS)
        ratios = [ratio for ratio in map(self.ratio, goal.against) if ratio is not None]
        if not ratios:
            return None
        return max(ratios) if self.better is Better.LOWER else min(ratios)

    def holds(self, goal: Goal) -> bool | None:
        """None: nothing to compare with."""
        value = self.reached(goal)
        if value is None:
            return None
        return value <= goal.limit if self.better is Better.LOWER else value >= goal.limit


PEERS = ("vllm", "llama.cpp", "transformers")
ROOFLINE = "roofline"


def cold_row(context: int) -> Row:
    return Row(f"cold TTFT, {context:,} tokens", "ms", Better.LOWER, (Goal(0.95, PEERS, "best peer"),))


def warm_row(context: int, num_new: int) -> Row:
    measure = f"warm TTFT, {context:,} tokens, last {num_new} new"
    return Row(measure, "ms", Better.LOWER, (Goal(0.6, PEERS, "best peer"),))


def decode_row(context: int) -> Row:
    goals = (
        Goal(0.65, (ROOFLINE,), "roofline, accepted"),
        Goal(0.8, (ROOFLINE,), "roofline, aim"),
        Goal(1.0, ("llama.cpp",), "llama.cpp, aim"),
    )
    return Row(f"decode, batch 1, context {context:,}", "tokens/s", Better.HIGHER, goals)


def batch_row(kind: str, what: str) -> Row:
    return Row(f"{what}, {kind}", "tokens/s", Better.HIGHER, (Goal(1.3, ("vllm",), "vllm"),))


def overhead_row(num_rows: int) -> Row:
    return Row(f"scheduler and pool, share of a decode step at batch {num_rows}", "%", Better.LOWER, (Goal(3.0),))


def kernel_row(num_rows: int, context: int, threads: int) -> Row:
    measure = f"paged attention, batch {num_rows} × {context:,}, {threads} thread{'s' if threads > 1 else ''}"
    return Row(measure, "ms", Better.LOWER, (Goal(0.9, ("contiguous",), "contiguous SDPA, packed GQA"),))


def waste_row(mean_prompt: int, mean_output: int) -> Row:
    measure = f"paged waste, block 16, prompts of mean {mean_prompt:,}, outputs of mean {mean_output}"
    return Row(measure, "%", Better.LOWER, (Goal(1.0),))
