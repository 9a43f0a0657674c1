"""How a run looks while it goes on: a line that moves on a terminal, one every few seconds elsewhere. On stderr."""

from __future__ import annotations

import asyncio
import sys
import time

from rich.console import Console
from rich.live import Live as RichLive

from services.loadtest.lifecycle import Screen
from services.loadtest.live import Live, LiveView

_TERMINAL_S, _LINES_S = 0.5, 5.0


class Progress:
    """Writes what a run tells of itself."""

    def __init__(self, num_planned: int) -> None:
        """0: only time bounds it."""
        self._num_planned = num_planned
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._began_s = time.monotonic()

    def screen(self) -> Screen:
        """For the lifecycle."""
        return Screen(self.phase, self.follow)

    def phase(self, text: str) -> None:
        """A new part of the run."""
        self._began_s = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    async def follow(self, live: Live) -> None:
        """Until it is cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(_LINES_S)
                print(self._text(live.view()), file=sys.stderr, flush=True)
        with RichLive(console=self._console, auto_refresh=False, transient=True) as shown:
            while True:
                shown.update(self._text(live.view()), refresh=True)
                await asyncio.sleep(_TERMINAL_S)

    def _text(self, view: LiveView) -> str:
        of = f"/{self._num_planned}" if self._num_planned else ""
        seconds = time.monotonic() - self._began_s
        parts = [f"{seconds:6.1f} s", f"{view.ended}{of} done", f"{view.running} running", f"{view.failed} failed"]
        if view.ttft_p50_s is not None and view.ttft_p99_s is not None:
            parts.append(f"TTFT p50 {view.ttft_p50_s * 1e3:.1f} ms, p99 {view.ttft_p99_s * 1e3:.1f} ms")
        if view.hit_rate is not None:
            parts.append(f"hit rate {view.hit_rate * 100:.1f} %")
        parts.append(f"{view.output_tokens / max(seconds, 1e-9):.0f} tok/s")
        return "  ".join(parts)
