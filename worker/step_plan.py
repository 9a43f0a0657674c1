"""The only seam between numbers and tensors: what one step has to compute, and what came of it.

Made by the scheduler, executed by a runner, frozen in between. A runner executes in order: moves, scrubs, starts of
loads, copies, forward, draws, compares. All slots are indices into the pool of their group (`CacheGeometry.groups`,
same order everywhere).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from cache_store.domain import NO_ADAPTER, AdapterDigest
from cache_store.transfers import NO_MOVES, Load, Moves

SequenceId = NewType("SequenceId", int)
"""Names one sequence of one engine; never reused."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw from the logits of a row's last token."""

    sample_index: int
    position: int
    """Position of the token to be drawn; with seed and sample index the counter of the random number."""
    temperature: float
    top_p: float
    top_k: int
    seed: int
    banned: tuple[int, ...]
    """Token ids that must not be drawn (stop tokens before min_tokens)."""


@dataclass(frozen=True, slots=True)
class Row:
    """The share of one sequence in a step."""

    sequence: SequenceId
    token_ids: tuple[int, ...]
    """New tokens: their keys and values are written. At least one."""
    start: int
    """Position of the first new token = tokens whose keys and values are readable before the step."""
    block_tables: tuple[tuple[int, ...], ...]
    """Per group: the slot of each block from position 0 on, covering start + len(token_ids) tokens. ABSENT in sliding
    groups for blocks that none of the new tokens reads."""
    draws: tuple[Draw, ...]
    """Empty where the last new token is not the sequence's last; several for the samples of one prompt."""
    adapter: AdapterDigest = NO_ADAPTER
    """One that is attached to the runner, or none."""

    @property
    def kv_length(self) -> int:
        """Tokens readable after the step."""
        return self.start + len(self.token_ids)

    def written_slots(self, group: int, block_size: int) -> tuple[int, ...]:
        """Slots of a group that get the new tokens."""
        return self.block_tables[group][self.start // block_size : -(-self.kv_length // block_size)]

    @property
    def is_decode(self) -> bool:
        """One new token and history: such rows come first."""
        return len(self.token_ids) == 1 and self.start > 0


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """The first `num_tokens` tokens of one slot, copied to another slot of the same group."""

    group: int
    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SlotRef:
    """One slot of one group."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class SlotCompare:
    """Two slots of one group that should hold the same keys and values, after the forward."""

    group: int
    expected: int
    computed: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Rows with one new token and history (decode) come first, then rows that prefill."""

    rows: tuple[Row, ...]
    scrubs: tuple[SlotRef, ...]
    """Slots to overwrite before anything else: they last held another domain's bytes."""
    copies: tuple[SlotCopy, ...]
    """Copy-on-write, before the forward. A target is never a source of the same step."""
    ended: tuple[SequenceId, ...]
    """Sequences that ended or were preempted since the last step, for runners with state of their own."""
    moves: Moves = NO_MOVES
    """Between the tiers, before anything else. A plan without rows may have moves, scrubs and loads."""
    loads: tuple[Load, ...] = ()
    """Started in the background after the scrubs; their targets belong to no row until they have finished."""
    compares: tuple[SlotCompare, ...] = ()
    """After the forward."""

    @property
    def num_tokens(self) -> int:
        """New tokens of all rows."""
        return sum(len(row.token_ids) for row in self.rows)


EMPTY_PLAN = StepPlan((), (), (), ())


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why a row gave no token; the other rows of the step are not touched by it."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step."""

    outcomes: tuple[tuple[int, ...] | RowFailure, ...]
    """Per row: one token id per draw, in order, or a failure."""
    differences: tuple[float, ...] = ()
    """Per compare: the largest difference in a layer's keys or values, by the largest of them; 0 where all are equal,
    NaN where one is not a number."""
    draw_s: float = 0.0
    """Seconds that drawing tokens took, where the runner can tell."""
