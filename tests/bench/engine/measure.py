"""Asks all sides for all rows, round by round: within a round every side once, so that they see the same machine."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from tests.bench.engine.rows import (
    OURS,
    ROOFLINE,
    Row,
    batch_row,
    cold_row,
    decode_row,
    kernel_row,
    overhead_row,
    warm_row,
    waste_row,
)
from tests.bench.engine.sides import Side, SideEndedError
from tests.bench.engine.sizes import Sizes
from tests.bench.engine.waste import measure_waste
from tests.bench.peers.answering import Answer, Question

_APART = 1000
"""Between the seeds of two questions; a side derives further ones from those that it gets."""

ROW_NAMES = ("cold", "warm", "decode", "batch", "overhead", "kernel", "waste")


@dataclass(slots=True)
class Raw:
    """One answer, as it came."""

    row: str
    side: str
    round: int
    question: Question
    answer: Answer
    load: float
    """Load average before."""


@dataclass(slots=True)
class Measurement:
    """Sides, and what they said."""

    sides: dict[str, Side]
    sizes: Sizes
    repeats: int
    wanted: frozenset[str]
    seed: int
    """Of this run: no prompt of another run is asked again."""
    rows: list[Row] = field(default_factory=list)
    raw: list[Raw] = field(default_factory=list)

    def run(self) -> None:
        """All rows that are wanted."""
        parts: dict[frozenset[str], Callable[[], None]] = {
            frozenset({"cold", "warm"}): self._prefill,
            frozenset({"decode"}): self._decode,
            frozenset({"batch"}): self._batch,
            frozenset({"overhead"}): self._overhead,
            frozenset({"kernel"}): self._kernel,
            frozenset({"waste"}): self._waste,
        }
        for names, measure in parts.items():
            if names & self.wanted:
                measure()

    def _prefill(self) -> None:
        for context in self.sizes.contexts:
            cold, warm = cold_row(context), warm_row(context, self.sizes.num_new)
            self.rows += [row for name, row in (("cold", cold), ("warm", warm)) if name in self.wanted]
            question = {"context": context, "num_new": self.sizes.num_new}
            for side, answer in self._rounds("prefill", question, fresh=True):
                cold.add(side, 1e3 * _number(answer, "cold_s"))
                warm.add(side, 1e3 * _number(answer, "warm_s"))

    def _decode(self) -> None:
        for context in self.sizes.decode_contexts:
            row = decode_row(context)
            self.rows.append(row)
            question = {
                "context": context,
                "num_skipped": self.sizes.num_skipped,
                "num_decoded": self.sizes.num_decoded,
            }
            for side, answer in self._rounds("decode", question, fresh=False):
                row.add(side, 1 / statistics.mean(_numbers(answer, "step_s")))
                if side == OURS:
                    row.add(ROOFLINE, self._roofline(context, answer))

    def _roofline(self, context: int, answer: Answer) -> float:
        """Tokens per second if a step did nothing but read weights, keys and values, as fast as between the steps."""
        info = self.sides[OURS].info
        mean_context = context + self.sizes.num_skipped + self.sizes.num_decoded / 2
        read_bytes = _number(info, "weights_bytes") + mean_context * _number(info, "kv_bytes_per_token")
        return statistics.harmonic_mean(_numbers(answer, "read_bytes_per_s")) / read_bytes

    def _batch(self) -> None:
        batch = self.sizes.batch
        what = f"{batch.requests} requests, {batch.shared:,} shared + {batch.own} own + {batch.output} output tokens"
        cold, warm = batch_row("cold", what), batch_row("warm", what)
        self.rows += [cold, warm]
        for side, answer in self._rounds("batch", asdict(batch), fresh=True):
            cold.add(side, batch.requests * batch.output / _number(answer, "cold_s"))
            warm.add(side, batch.requests * batch.output / _number(answer, "warm_s"))

    def _overhead(self) -> None:
        row = overhead_row(self.sizes.overhead_rows)
        self.rows.append(row)
        question = {
            "rows": self.sizes.overhead_rows,
            "context": self.sizes.overhead_context,
            "num_decoded": self.sizes.num_decoded,
        }
        for side, answer in self._rounds("overhead", question, fresh=True):
            row.add(side, 100 * (1 - sum(_numbers(answer, "runner_s")) / sum(_numbers(answer, "step_s"))))

    def _kernel(self) -> None:
        threads = int(_number(self.sides[OURS].info, "threads"))
        for number in sorted({1, threads}):
            row = kernel_row(self.sizes.kernel.rows, self.sizes.kernel.context, number)
            self.rows.append(row)
            for side, answer in self._rounds("kernel", asdict(self.sizes.kernel) | {"threads": number}, fresh=True):
                row.add(side, 1e3 * statistics.median(_numbers(answer, "paged_s")))
                row.add("contiguous", 1e3 * statistics.median(_numbers(answer, "contiguous_s")))

    def _waste(self) -> None:
        load = self.sizes.waste
        row = waste_row(load.mean_prompt, load.mean_output)
        self.rows.append(row)
        answer = measure_waste(load, self.seed)
        self.raw.append(Raw("waste", OURS, 0, asdict(load), answer, os.getloadavg()[0]))
        row.add(OURS, 100 * _number(answer, "overall"))

    def _rounds(self, name: str, question: Question, fresh: bool) -> Iterator[tuple[str, Answer]]:
        """Every side that has the row, in every round; with the same prompt in all rounds where it is not `fresh`."""
        self.seed += _APART
        for number in range(self.repeats):
            self.seed += _APART if fresh else 0
            asked = question | {"seed": self.seed}
            for side_name, side in list(self.sides.items()):
                if name not in side.info["rows"]:  # type: ignore[operator]
                    continue
                load, start = os.getloadavg()[0], time.monotonic()
                try:
                    answer = side.ask(name, asked)
                except SideEndedError as error:
                    if side_name == OURS:
                        raise
                    sys.stderr.write(f"{error}; it is not run any more\n")
                    self.sides.pop(side_name).close()
                    continue
                self.raw.append(Raw(name, side_name, number, asked, answer, load))
                took_s = time.monotonic() - start
                sys.stderr.write(f"  {name} {_short(question)}, round {number + 1}: {side_name} {took_s:.1f} s\n")
                yield side_name, answer


def _short(question: Question) -> str:
    return " ".join(f"{name} {value}" for name, value in question.items() if name in ("context", "threads"))


def _number(answer: Answer, name: str) -> float:
    value = answer[name]
    assert isinstance(value, int | float)
    return float(value)


def _numbers(answer: Answer, name: str) -> list[float]:
    values = answer[name]
    assert isinstance(values, list)
    return [float(value) for value in values]
