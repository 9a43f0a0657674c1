"""How the demo looks: a progress display and colours on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.table import Table

from services.demo.requests import Answer
from services.demo.verdicts import Verdict


class Screen:
    """Writes to standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._begin_s = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """A line that tells what goes on; on a terminal it moves, and `step` changes it."""
        if not self._console.is_terminal:
            self.say(f"{text} …")
            yield
            return
        with self._console.status(text) as self._status:
            yield
        self._status = None

    def step(self, text: str) -> None:
        """What goes on within `working`."""
        if self._status is not None:
            self._status.update(text)
        else:
            self.say(f"  {time.monotonic() - self._begin_s:5.1f} s  {text}")

    def show_answers(self, answers: Sequence[Answer]) -> None:
        """The table of requests."""
        table = Table(box=None if not self._console.is_terminal else Table().box, pad_edge=False)
        table.add_column("request", no_wrap=True)
        for heading in ("TTFT", "prompt", "cached", "computed"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("worker", no_wrap=True)
        for answer in answers:
            usage = answer.usage
            temperature = "warm" if usage.cached_tokens else "cold"
            table.add_row(
                f"{answer.label} ({temperature})",
                f"{answer.ttft_s * 1000:,.0f} ms",
                f"{usage.prompt_tokens:,}",
                f"{usage.cached_tokens:,}",
                f"{usage.computed_tokens:,}",
                answer.route.worker_id,
            )
        self._console.print(table)

    def show_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """One line per claim."""
        for verdict in verdicts:
            mark, style = ("ok  ", "green") if verdict.holds else ("FAIL", "bold red")
            self._console.print(mark, style=style, end=" ")
            self.say(f"{verdict.claim} ({verdict.evidence})")
