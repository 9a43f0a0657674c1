"""Rows of one step under its token budget. Pure; everything that changes only per block is taken ready-made."""

from __future__ import annotations

from cache_store.tokens import unpack
from worker.sequence import Sequence
from worker.step_plan import Row


class StepBuilder:
    """Rows chosen so far and the tokens that are left for more."""

    def __init__(self, num_tokens: int, block_size: int) -> None:
        self.num_left = num_tokens
        self._block_size = block_size
        self._decodes: list[tuple[Sequence, Row]] = []
        self._prefills: list[tuple[Sequence, Row]] = []

    def add(self, sequence: Sequence) -> None:
        """Takes as many of the sequence's tokens as fit; at least one must be left."""
        num_tokens = min(sequence.num_remaining, self.num_left)
        assert num_tokens > 0, "no tokens are left in the step"
        self.num_left -= num_tokens
        row = _make_row(sequence, num_tokens, self._block_size)
        (self._decodes if row.is_decode else self._prefills).append((sequence, row))

    def in_order(self) -> list[tuple[Sequence, Row]]:
        """Decodes first, as a plan wants them."""
        return self._decodes + self._prefills


def _make_row(sequence: Sequence, num_tokens: int, block_size: int) -> Row:
    assert sequence.id is not None
    start = sequence.num_computed
    stop = start + num_tokens
    is_last = stop == sequence.num_tokens
    if is_last and num_tokens == 1:
        token_ids: tuple[int, ...] = (sequence.last_token,)
    else:
        token_ids = tuple(unpack(sequence.tokens(start, stop)))
    num_blocks = -(-stop // block_size)
    tables = sequence.tables
    if num_blocks < len(sequence.blocks):
        tables = tuple(table[:num_blocks] for table in tables)
    return Row(sequence.id, token_ids, start, tables, sequence.draws() if is_last else ())
