"""What a fault did: the figures of the table, and what was claimed and seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.load import Load

MIN_IN_PHASE = 30
"""Requests that must have been in the phase that the fault claims to hit."""


@dataclass
class Outcome:
    """Of one run of one fault."""

    fault: str
    phase: str
    """What the requests counted as `in_phase` were doing when it happened."""
    sent: int = 0
    in_phase: int = 0
    failed_before_first: int = 0
    broken_later: int = 0
    """Streams that ended with an error after their start, what had come of tokens being right."""
    wrong_tokens: int = 0
    recovery_s: float = 0.0
    recovered_when: str = ""
    """What `recovery_s` is the time to."""
    claims: list[tuple[str, bool]] = field(default_factory=list)
    """What is said of it, and whether it was seen."""
    errors: list[str] = field(default_factory=list)
    """Some of those that streams ended with."""

    def claim(self, what: str, seen: object) -> None:
        """Notes whether something was as it has to be."""
        self.claims.append((what, bool(seen)))

    def count(self, load: Load) -> None:
        """The load's part of the figures."""
        failed = [stream for stream in load.streams if stream.error]
        self.sent += len(load.streams)
        self.failed_before_first += sum(not stream.has_begun for stream in failed)
        self.broken_later += sum(stream.has_begun for stream in failed)
        self.wrong_tokens += load.num_wrong()
        self.errors += sorted({stream.error for stream in failed})[:5]

    @property
    def failures(self) -> list[str]:
        """What was not as it has to be."""
        found = [what for what, seen in self.claims if not seen]
        if self.in_phase < MIN_IN_PHASE:
            found.append(f"only {self.in_phase} requests were {self.phase}, not {MIN_IN_PHASE}")
        if self.failed_before_first:
            found.append(f"{self.failed_before_first} requests failed before their first token")
        if self.wrong_tokens:
            found.append(f"{self.wrong_tokens} wrong tokens")
        return found

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {**asdict(self), "held": not self.failures, "failures": self.failures}


def table(outcomes: Sequence[Outcome]) -> str:
    """The figures, a line per fault."""
    titles = ("fault", "sent", "in flight in the phase", "failed before", "broken", "wrong", "recovery", "held")
    rows = [titles]
    for each in outcomes:
        phase = f"{each.in_phase} {each.phase}"
        figures = (each.sent, phase, each.failed_before_first, each.broken_later, each.wrong_tokens)
        recovery = f"{each.recovery_s:.1f} s" if each.recovered_when else "-"
        rows.append((each.fault, *map(str, figures), recovery, "no" if each.failures else "yes"))
    widths = [max(len(row[at]) for row in rows) for at in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def details(outcome: Outcome) -> str:
    """What was claimed of one fault, a line each."""
    lines = [f"{outcome.fault}:"]
    lines += [f"  {'yes' if seen else 'NO '}  {what}" for what, seen in outcome.claims]
    if outcome.recovered_when:
        lines.append(f"  {outcome.recovery_s:.1f} s until {outcome.recovered_when}")
    lines += [f"  error  {error}" for error in outcome.errors]
    lines += [f"  FAILED {failure}" for failure in outcome.failures]
    return "\n".join(lines)
