"""Finds prompts that are long enough for a hit to be told from a miss, and no longer.

Each tenant repeats prompts of its own and sends others, under the conditions of the test. Where no length will do,
either nothing is cached or the times drown in noise; then the test could not fail, and must not pass. Keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from services.loadtest.isolation.auc import Auc, auc
from services.loadtest.isolation.lanes import num_at_once, run_lanes
from services.loadtest.isolation.power import CONFIDENCE
from services.loadtest.isolation.prompts import FreshPrompts
from services.loadtest.isolation.samples import CONTROL_AUC, Answer, Party, Prober, Variant

LENGTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1_024, 2_048, 4_096)
_TRIPLES, _FEW_TRIPLES = 10, 3
"""Two first requests and a repeat, of each tenant."""
_ENOUGH_TOKENS = 256
"""A system that reuses nothing of prompts of that length does not cache."""
_CLEAR_AUC = 0.98
_CLEAR_RATIO = 2.5
"""Of a first request's time to a repeat's."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Times at one length of prompts."""

    num_tokens: int
    first_s: float
    """Median of first requests."""
    repeat_s: float
    """Median of repeats."""
    told: Auc
    """By how much they differ."""
    cached_tokens: float
    """Of a repeat, on average."""
    pace_s: float
    """From one first request to the next, repeats between them included."""

    @property
    def tells(self) -> bool:
        """Whether a hit can be told from a miss."""
        return self.told.value >= CONTROL_AUC

    @property
    def is_clear(self) -> bool:
        """Whether that will be so throughout the test."""
        sure = self.told.value >= _CLEAR_AUC and self.told.lower_bound(CONFIDENCE) >= CONTROL_AUC
        return sure and self.first_s >= _CLEAR_RATIO * self.repeat_s

    def text(self) -> str:
        """For people."""
        return (
            f"prompts of {self.num_tokens:,} tokens: first {self.first_s * 1e3:.1f} ms, repeated "
            f"{self.repeat_s * 1e3:.1f} ms with {self.cached_tokens:,.0f} tokens cached, AUC {self.told.value:.3f}"
        )


class Calibrator:
    """Tries lengths with one prober."""

    def __init__(self, prober: Prober, prompts: FreshPrompts, report: Callable[[str], None]) -> None:
        self._prober = prober
        self._prompts = prompts
        self._report = report

    async def length(self, max_tokens: int, variant: Variant) -> Calibration:
        """The shortest length at which hits are clear in that variant; else the one at which they are told best."""
        tried: list[Calibration] = []
        await self._times(min(LENGTHS[0], max_tokens), variant, _FEW_TRIPLES)  # whatever is slow for once
        for num_tokens in (length for length in LENGTHS if length <= max_tokens):
            if tried and not tried[-1].cached_tokens and num_tokens < min(_ENOUGH_TOKENS, max_tokens):
                continue  # shorter than a block, or nothing is cached at all
            tried.append(await self._times(num_tokens, variant, _TRIPLES))
            self._report(tried[-1].text())
            if tried[-1].is_clear:
                return tried[-1]
            if num_tokens >= _ENOUGH_TOKENS and not tried[-1].cached_tokens:
                break
        if not tried:
            raise ValueError(f"the model takes {max_tokens} tokens; the test needs {LENGTHS[0]}")
        return max(tried, key=lambda each: (each.told.value, each.first_s / each.repeat_s))

    async def pace(self, num_tokens: int, variant: Variant) -> Calibration:
        """At that length, roughly."""
        return await self._times(num_tokens, variant, _FEW_TRIPLES)

    async def _times(self, num_tokens: int, variant: Variant, num_triples: int) -> Calibration:
        first: list[Answer] = []
        repeated: list[Answer] = []

        async def lane(party: Party) -> None:
            for _ in range(num_triples):
                prompt = self._prompts.draw(num_tokens)
                first.append(await self._prober.ask(party, prompt))
                repeated.append(await self._prober.ask(party, prompt))
                first.append(await self._prober.ask(party, self._prompts.draw(num_tokens)))

        await run_lanes(variant, lane)
        first_s, repeat_s = (np.array([each.ttft_s for each in answers]) for answers in (first, repeated))
        return Calibration(
            num_tokens=num_tokens,
            first_s=float(np.median(first_s)),
            repeat_s=float(np.median(repeat_s)),
            told=auc(repeat_s, first_s),
            cached_tokens=float(np.mean([each.cached_tokens for each in repeated])),
            pace_s=float(first_s.sum() + repeat_s.sum()) / len(first) / num_at_once(variant),
        )
