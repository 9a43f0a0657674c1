"""A hand-made driver of runners: sequences, block tables and step plans, written down by the test itself.

No scheduler and no cache: the test says which row computes how many tokens, and which blocks a sequence starts with.
Slots differ between groups, and are handed out in a scattered order, so that a mixed-up table shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from worker.plan_check import check_plan
from worker.runner import Runner
from worker.step_plan import Draw, Row, SequenceId, SlotCopy, SlotRef, StepPlan

GREEDY = Draw(sample_index=0, position=0, temperature=0.0, top_p=1.0, top_k=0, seed=0, banned=())


@dataclass(slots=True)
class Track:
    """Tokens of one sequence, how many are computed, and its blocks per group."""

    id: SequenceId
    tokens: list[int]
    num_prompt: int
    computed: int
    tables: list[list[int]]
    logits: list[Tensor] = field(default_factory=list)

    @property
    def answer(self) -> list[int]:
        """Drawn tokens."""
        return self.tokens[self.num_prompt :]


class Driver:
    """Feeds one runner."""

    def __init__(self, runner: Runner, seed: int = 3) -> None:
        self.runner = runner
        self.block_size = runner.info.geometry.block_size
        shuffler = random.Random(seed)
        self._free = [list(range(num)) for num in runner.num_slots]
        for free in self._free:
            shuffler.shuffle(free)
        self._next_id = 0
        self._scrubs: list[SlotRef] = []
        self._copies: list[SlotCopy] = []
        self._ended: list[SequenceId] = []
        self.last_logits: Tensor | None = None

    def observe(self, plan: StepPlan, logits: Tensor) -> None:
        """A LogitsObserver; the runner is made with it before the driver."""
        self.last_logits = logits.clone()

    def start(self, prompt: Sequence[int], prefix_of: Track | None = None, num_shared: int = 0) -> Track:
        """A sequence whose first `num_shared` tokens are read from the blocks of another; a partial block is copied."""
        sequence = Track(SequenceId(self._next_id), list(prompt), len(prompt), num_shared, [[] for _ in self._free])
        self._next_id += 1
        if prefix_of is not None:
            full, rest = divmod(num_shared, self.block_size)
            for group, table in enumerate(sequence.tables):
                table.extend(prefix_of.tables[group][:full])
                if rest:
                    target = self._free[group].pop()
                    self._copies.append(SlotCopy(group, prefix_of.tables[group][full], target, rest))
                    table.append(target)
        return sequence

    def end(self, sequence: Track) -> None:
        """Tells the runner with the next step."""
        self._ended.append(sequence.id)

    def scrub(self, group: int, slot: int) -> None:
        """Overwrites a slot before the next step."""
        self._scrubs.append(SlotRef(group, slot))

    def step(self, *work: tuple[Track, int], draws: tuple[Draw, ...] = (GREEDY,)) -> list[object]:
        """Computes so many tokens of each sequence; draws and appends where all its tokens are then computed."""
        rows = tuple(self._row(sequence, count, draws) for sequence, count in work)
        plan = StepPlan(rows, tuple(self._scrubs), tuple(self._copies), tuple(self._ended))
        self._scrubs, self._copies, self._ended = [], [], []
        check_plan(plan, self.runner.info.geometry, self.runner.num_slots)
        outcomes = self.runner.run(plan).outcomes
        drawing = 0
        for (sequence, _), row, outcome in zip(work, rows, outcomes, strict=True):
            sequence.computed = row.kv_length
            if row.draws:
                if self.last_logits is not None:
                    sequence.logits.append(self.last_logits[drawing])
                drawing += 1
                if isinstance(outcome, tuple):
                    sequence.tokens.append(outcome[0])
        return list(outcomes)

    def decode(self, sequences: Sequence[Track], num_tokens: int) -> None:
        """So many steps of one token for all `sequences` together."""
        for _ in range(num_tokens):
            self.step(*((sequence, 1) for sequence in sequences))

    def _row(self, sequence: Track, count: int, draws: tuple[Draw, ...]) -> Row:
        stop = sequence.computed + count
        assert sequence.computed < stop <= len(sequence.tokens)
        for group, table in enumerate(sequence.tables):
            while len(table) * self.block_size < stop:
                table.append(self._free[group].pop())
        return Row(
            sequence=sequence.id,
            token_ids=tuple(sequence.tokens[sequence.computed : stop]),
            start=sequence.computed,
            block_tables=tuple(tuple(table) for table in sequence.tables),
            draws=draws if stop == len(sequence.tokens) else (),
        )
