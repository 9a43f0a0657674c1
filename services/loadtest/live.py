"""What is seen of a run while it goes on: bounded, whatever its length. Owned by the event loop of the driver."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from services.loadtest.records import OK
from services.loadtest.targets import Answer

_LAST = 1_024


@dataclass(frozen=True, slots=True)
class LiveView:
    """One look; percentiles are those of the last 1,024 requests that had a first token."""

    running: int
    ended: int
    failed: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    hit_rate: float | None
    """Of all so far; None before the first answer."""
    output_tokens: int


class Live:
    """Counts as requests start and end."""

    def __init__(self) -> None:
        self._started = self._ended = self._failed = 0
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._ttfts: deque[float] = deque(maxlen=_LAST)

    def started(self) -> None:
        """A request was sent."""
        self._started += 1

    def ended(self, answer: Answer, intended_s: float) -> None:
        """It came to its end, whichever; `intended_s` is by the clock of its arrivals."""
        self._ended += 1
        if answer.status != OK:
            self._failed += 1
            return
        self._prompt_tokens += answer.prompt_tokens
        self._cached_tokens += answer.cached_tokens
        self._output_tokens += answer.completion_tokens
        if answer.arrivals_s:
            self._ttfts.append(answer.arrivals_s[0] - intended_s)

    def view(self) -> LiveView:
        """As it is now."""
        p50, p99 = np.percentile(self._ttfts, (50, 99)) if self._ttfts else (None, None)
        hit_rate = self._cached_tokens / self._prompt_tokens if self._prompt_tokens else None
        return LiveView(
            running=self._started - self._ended,
            ended=self._ended,
            failed=self._failed,
            ttft_p50_s=None if p50 is None else float(p50),
            ttft_p99_s=None if p99 is None else float(p99),
            hit_rate=hit_rate,
            output_tokens=self._output_tokens,
        )
