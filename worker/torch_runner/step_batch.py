"""A step plan as arrays: built once per step, read by every layer.

All rows are flattened into one batch of tokens, decode rows first. Pure numpy; the paged runner moves what the device
needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from worker.step_plan import StepPlan

Ints = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Where the tokens of a step live in one group's pool."""

    tables: Slots
    """Block tables of all rows, one after the other."""
    table_starts: Slots
    """[rows + 1]: the part of `tables` that is each row's."""
    token_blocks: Ints
    """[tokens]: slot that each new token is written to."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step, flattened."""

    token_ids: Ints
    """[tokens]."""
    positions: Ints
    """[tokens]."""
    token_offsets: Ints
    """[tokens]: place of each new token inside its block."""
    row_starts: Slots
    """[rows + 1]: the part of the batch that is each row's."""
    lengths: Slots
    """[rows]: tokens readable after the step."""
    num_decode_rows: int
    """Leading rows with one new token."""
    drawing_tokens: Ints
    """[drawing rows]: index in the batch of the last token of each row that draws."""
    groups: tuple[GroupBatch, ...]


def build_batch(plan: StepPlan, block_size: int, num_groups: int) -> StepBatch:
    """Flattens `plan`. Its rows must not be empty."""
    rows = plan.rows
    counts = [len(row.token_ids) for row in rows]
    row_starts = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=row_starts[1:])
    positions = np.concatenate([np.arange(row.start, row.kv_length) for row in rows])
    drawing = [int(row_starts[index + 1]) - 1 for index, row in enumerate(rows) if row.draws]
    decode = next((index for index, count in enumerate(counts) if count != 1), len(rows))
    return StepBatch(
        token_ids=np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int64, int(row_starts[-1])),
        positions=positions,
        token_offsets=positions % block_size,
        row_starts=row_starts,
        lengths=np.array([row.kv_length for row in rows], dtype=np.int32),
        num_decode_rows=decode,
        drawing_tokens=np.array(drawing, dtype=np.int64),
        groups=tuple(_group_batch(plan, group, positions // block_size, row_starts) for group in range(num_groups)),
    )


def _group_batch(plan: StepPlan, group: int, token_places: Ints, row_starts: Slots) -> GroupBatch:
    tables = [row.block_tables[group] for row in plan.rows]
    starts = np.zeros(len(tables) + 1, dtype=np.int32)
    np.cumsum([len(table) for table in tables], out=starts[1:])
    flat = np.fromiter(chain.from_iterable(tables), np.int32, int(starts[-1]))
    row_of_token = np.repeat(np.arange(len(tables)), np.diff(row_starts))
    return GroupBatch(flat, starts, flat[starts[row_of_token] + token_places].astype(np.int64))
