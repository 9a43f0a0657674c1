"""What a check of a GPU found: lines for people, and the same as JSON. A section that fails does not end the others."""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

import torch


class Verdict(StrEnum):
    """Of one line."""

    RIGHT = "right"
    WRONG = "WRONG"
    MEASURED = "measured"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    section: str
    name: str
    verdict: Verdict
    value: str
    figures: dict[str, float] = field(default_factory=dict)


class Report:
    """Collects lines and prints each as it comes."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._section = ""

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Whatever raises inside is a wrong line of that section."""
        self._section = name
        started = time.monotonic()
        print(f"\n== {name}", flush=True)
        try:
            yield
        except Exception as error:  # a check reports all that is the matter, whatever it is
            self._add("the section itself", Verdict.WRONG, f"{type(error).__name__}: {str(error)[:300]}")
            traceback.print_exc()
        print(f"   {time.monotonic() - started:.1f} s", flush=True)

    def expect(self, name: str, error: float, bound: float) -> None:
        """Right where `error` is at most `bound`; NaN is not."""
        verdict = Verdict.RIGHT if error <= bound else Verdict.WRONG
        self._add(name, verdict, f"{error:.2e} (bound {bound:.1e})", {"error": error, "bound": bound})

    def expect_true(self, name: str, is_true: bool, value: str = "") -> None:
        """Right where it is so."""
        self._add(name, Verdict.RIGHT if is_true else Verdict.WRONG, value)

    def measured(self, name: str, value: str, **figures: float) -> None:
        """A figure without a verdict."""
        self._add(name, Verdict.MEASURED, value, figures)

    def skipped(self, name: str, reason: str) -> None:
        """What was not tried, and why."""
        self._add(name, Verdict.SKIPPED, reason)

    def attempt(self, name: str, check: Callable[[], None]) -> None:
        """Runs one check of a section; where it raises the next one runs all the same."""
        try:
            check()
        except Exception as error:  # as for sections
            self._add(name, Verdict.WRONG, f"{type(error).__name__}: {str(error)[:300]}")
            traceback.print_exc()

    @property
    def num_wrong(self) -> int:
        """Lines that must not be."""
        return sum(line.verdict is Verdict.WRONG for line in self.lines)

    def write(self, path: Path, device: str) -> None:
        """Everything, with what it was found on."""
        content = {
            "device": device,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "lines": [asdict(line) for line in self.lines],
        }
        path.write_text(json.dumps(content, indent=1))

    def table(self) -> str:
        """All lines once more."""
        width = max((len(line.name) for line in self.lines), default=0)
        return "\n".join(f"{line.verdict:9} {line.section:12} {line.name:{width}} {line.value}" for line in self.lines)

    def _add(self, name: str, verdict: Verdict, value: str, figures: dict[str, float] | None = None) -> None:
        self.lines.append(Line(self._section, name, verdict, value, figures or {}))
        print(f"   {verdict:9} {name}: {value}", flush=True)
