"""Rows of one step under its token budget. Pure; everything that changes only per block is taken ready-made."""

from __future__ import annotations

from collections.abc import Iterable

from cache_store.tokens import unpack
from worker.sequence import Sequence
from worker.step_plan import Row


class StepBuilder:
    """Tokens of each sequence chosen so far, and those that are left for more."""

    def __init__(self, num_tokens: int, block_size: int) -> None:
        self.num_left = num_tokens
        self._block_size = block_size
        self._chosen: dict[Sequence, int] = {}

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._chosen

    @property
    def chosen(self) -> Iterable[tuple[Sequence, int]]:
        """Sequences of the step, and how many tokens of each."""
        return self._chosen.items()

    def remaining(self, sequence: Sequence) -> int:
        """Tokens of the sequence that the step does not compute yet."""
        return sequence.num_remaining - self._chosen.get(sequence, 0)

    def take(self, sequence: Sequence, num_most: int) -> int:
        """Takes up to `num_most` more of the sequence's tokens, as many as fit: at least one; how many."""
        num_tokens = min(self.remaining(sequence), self.num_left, num_most)
        assert num_tokens > 0, "no tokens are left"
        self.num_left -= num_tokens
        self._chosen[sequence] = self._chosen.get(sequence, 0) + num_tokens
        return num_tokens

    def drop(self, sequence: Sequence) -> None:
        """Leaves a sequence out after all."""
        self.num_left += self._chosen.pop(sequence, 0)

    def in_order(self) -> list[tuple[Sequence, Row]]:
        """Decodes first, as a plan wants them."""
        entries = [(sequence, _make_row(sequence, num, self._block_size)) for sequence, num in self._chosen.items()]
        return sorted(entries, key=_decodes_first)


def _decodes_first(entry: tuple[Sequence, Row]) -> bool:
    return not entry[1].is_decode


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
    return Row(
        sequence.id, token_ids, start, tables, sequence.draws() if is_last else (), sequence.owner.request.adapter
    )
