"""The JSON that a benchmark leaves: what was run where and when, what came of it, and every sample.

`tests/bench/page/` makes `BENCHMARKS.md` of these and of nothing else, so all that it tells stands here. Paths outside
the repository are told by their last part: a result is read elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import NOT_RUN, ROOT, conditions_line, machine

NOT_INSTALLED = f"{NOT_RUN}: not installed (`make bench-peers`)"


@dataclass(frozen=True, slots=True)
class Record:
    """One run of a benchmark, begun before anything is measured."""

    before: Mapping[str, object]
    began_s: float

    @classmethod
    def begin(cls) -> Record:
        """As the machine is now."""
        return cls(machine(), time.monotonic())

    def write(
        self,
        arguments: argparse.Namespace,
        *,
        figures: Mapping[str, object],
        raw: object = None,
        versions: Mapping[str, str] | None = None,
        peers: Mapping[str, str] | None = None,
    ) -> None:
        """To the file of `--json`, and says so. `figures` is what a table needs, `raw` the samples behind it; `peers`:
        their versions, or why they were not run."""
        after = machine()
        document = {
            "command": command(sys.argv[1:]),
            "took_s": round(time.monotonic() - self.began_s, 1),
            "before": self.before,
            "after": after,
            "versions": versions or {},
            "peers": peers or {},
            "settings": {name: _told(value) for name, value in vars(arguments).items() if name != "json"},
            "figures": figures,
            "raw": raw,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        print(conditions_line(self.before, after))
        print(f"JSON: {arguments.json}")


def command(told: list[str]) -> str:
    """The line that would run this again, without the place of the JSON and of peers."""
    spec = sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec else "unknown"
    words, skipped = [], False
    for word in told:
        name, _, value = word.partition("=")
        if skipped or name == "--json":
            skipped = not skipped and not value
        else:
            words.append(_told(Path(word)) if "/" in word else word)
    return " ".join(("python -m", module, *words))


def _told(value: object) -> object:
    if isinstance(value, Path) and not value.is_absolute():
        return str(value)
    if isinstance(value, Path):
        return str(value.relative_to(ROOT)) if value.is_relative_to(ROOT) else value.name
    if isinstance(value, tuple | list):
        return [_told(each) for each in value]
    return value if isinstance(value, int | float | str | None) else str(value)
