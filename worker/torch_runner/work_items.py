"""The work of paged attention as a list: which tokens of which row, against which range of its keys.

An item is up to `tile_tokens` successive tokens of one row. Where keys are split, an item has those of one range of
`split` positions, counted from the sequence's beginning: how a row's work is cut depends on that row alone. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]
Integers = npt.NDArray[np.integer[Any]]

ITEM_FIELDS = 8
"""Of an item: start of the row's block table, first token in the batch, tokens, position of the first, first key,
end of keys, first part, and nothing."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a step, as arrays [rows]."""

    table_starts: Words
    """Where in the group's tables theirs begin."""
    first_tokens: Words
    """Index in the batch of their first new token."""
    num_tokens: Words
    """New tokens."""
    first_positions: Words
    """Position of the first new token."""


@dataclass(frozen=True, slots=True)
class Work:
    """A list of work for one kernel."""

    items: Words
    """[items, ITEM_FIELDS]."""
    parts: Words
    """[3, tokens]: first part of each token, distance of its parts, their number. Empty where nothing is split."""
    num_parts: int


def make_work(rows: Rows, window: int, tile_tokens: int, split: int) -> Work:
    """Cuts `rows` into items. `split` 0: each item has all keys that it reads, and longer ones come first."""
    num_tiles = -(-rows.num_tokens // tile_tokens)
    row = np.repeat(np.arange(len(num_tiles)), num_tiles)
    done = (np.arange(len(row)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)) * tile_tokens
    counts = np.minimum(tile_tokens, rows.num_tokens[row] - done)
    positions = rows.first_positions[row] + done
    high = positions + counts
    low = np.maximum(0, positions - window + 1) if window else np.zeros_like(positions)
    tiles = (rows.table_starts[row], rows.first_tokens[row] + done, counts, positions, low, high)
    if split:
        return _split(tiles, split)
    items = _table(*tiles, np.zeros_like(low))
    return Work(np.ascontiguousarray(items[np.argsort(low - high, kind="stable")]), np.empty((3, 0), np.int32), 0)


def _split(tiles: tuple[Integers, ...], split: int) -> Work:
    starts, tokens, counts, positions, low, high = tiles
    first = low // split
    num_splits = (high - 1) // split - first + 1
    tile = np.repeat(np.arange(len(first)), num_splits)
    item_starts = np.cumsum(num_splits) - num_splits
    place = first[tile] + np.arange(len(tile)) - item_starts[tile]
    item_low, item_high = np.maximum(low[tile], place * split), np.minimum(high[tile], (place + 1) * split)
    num_parts = np.cumsum(counts[tile])
    part = num_parts - counts[tile]
    items = _table(starts[tile], tokens[tile], counts[tile], positions[tile], item_low, item_high, part)
    tile_of_token = np.repeat(np.arange(len(counts)), counts)
    in_tile = np.arange(len(tile_of_token)) - np.repeat(np.cumsum(counts) - counts, counts)
    parts = (part[item_starts[tile_of_token]] + in_tile, counts[tile_of_token], num_splits[tile_of_token])
    return Work(items, np.stack(parts).astype(np.int32), int(num_parts[-1]) if len(num_parts) else 0)


def _table(*fields: Integers) -> Words:
    items = np.zeros((len(fields[0]), ITEM_FIELDS), np.int32)
    for index, values in enumerate(fields):
        items[:, index] = values
    return items
