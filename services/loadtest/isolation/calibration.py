"""Finds prompts that are long enough for a hit to be told from a miss, and no longer.

Asks as the owner only. Where no length will do, either nothing is cached or the times drown in noise; then the test
could not fail, and must not pass. Keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from services.loadtest.isolation.auc import auc
from services.loadtest.isolation.load import surroundings
from services.loadtest.isolation.prompts import FreshPrompts
from services.loadtest.isolation.samples import CONTROL_AUC, Party, Prober, Variant

LENGTHS = (64, 128, 256, 512, 1_024, 2_048, 4_096)
_PAIRS = 16
_ENOUGH_TOKENS = 256
"""A system that reuses nothing of prompts of that length does not cache."""
_CLEAR_AUC = 0.98
_CLEAR_RATIO = 2.0
"""Of a first request's time to a repeat's."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Times at one length of prompts."""

    num_tokens: int
    first_s: float
    """Median of first requests."""
    repeat_s: float
    """Median of repeats."""
    auc: float
    """By how much they differ."""
    cached_tokens: float
    """Of a repeat, on average."""

    @property
    def tells(self) -> bool:
        """Whether a hit can be told from a miss."""
        return self.auc >= CONTROL_AUC

    @property
    def is_clear(self) -> bool:
        """Whether that will be so throughout the test."""
        return self.auc >= _CLEAR_AUC and self.first_s >= _CLEAR_RATIO * self.repeat_s

    def text(self) -> str:
        """For people."""
        return (
            f"prompts of {self.num_tokens:,} tokens: first {self.first_s * 1e3:.1f} ms, repeated "
            f"{self.repeat_s * 1e3:.1f} ms with {self.cached_tokens:,.0f} tokens cached, AUC {self.auc:.3f}"
        )


async def calibrate(
    prober: Prober, prompts: FreshPrompts, max_tokens: int, variant: Variant, report: Callable[[str], None]
) -> Calibration:
    """The shortest length at which hits are clear in that variant; else the one at which they are told best."""
    tried: list[Calibration] = []
    await _times(prober, prompts, min(LENGTHS[0], max_tokens))  # whatever is slow for once
    for num_tokens in (length for length in LENGTHS if length <= max_tokens):
        async with surroundings(variant, prober, prompts, num_tokens):
            tried.append(await _times(prober, prompts, num_tokens))
        report(tried[-1].text())
        if tried[-1].is_clear:
            return tried[-1]
        if num_tokens >= _ENOUGH_TOKENS and not tried[-1].cached_tokens:
            break
    if not tried:
        raise ValueError(f"the model takes {max_tokens} tokens; the test needs {LENGTHS[0]}")
    return max(tried, key=lambda each: (each.auc, each.first_s / each.repeat_s))


async def _times(prober: Prober, prompts: FreshPrompts, num_tokens: int) -> Calibration:
    first, repeat, cached = [], [], []
    for _ in range(_PAIRS):
        prompt = prompts.draw(num_tokens)
        first.append((await prober.ask(Party.OWNER, prompt)).ttft_s)
        again = await prober.ask(Party.OWNER, prompt)
        repeat.append(again.ttft_s)
        cached.append(again.cached_tokens)
    told = auc(np.array(repeat), np.array(first))
    return Calibration(
        num_tokens, float(np.median(first)), float(np.median(repeat)), told.value, float(np.mean(cached))
    )
