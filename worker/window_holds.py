"""What running sequences hold of window groups: the slots that some token still to be computed reads, and no others.

Before a step each of its sequences gets slots for the blocks that it writes; after it, it lets go of what its next
token reads no more. It keeps the full blocks before the one that it has begun as far as a request reads them that goes
on from there, so that whoever asks next for all of it finds the boundary. There is always a slot (`pool_sizes.py`).
Changes sequences' tables; owned by the allocator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Items

from cache_store.pool_sizes import ABSENT
from cache_store.prefix_tree import Block
from cache_store.tiers import Match
from cache_store.tokens import count
from cache_store.window_order import Worth
from cache_store.window_slots import WindowSlots
from cache_store.windows import Windows
from worker.sequence import Sequence


class WindowHolds:
    """Of all sequences of one engine."""

    def __init__(self, windows: Windows, block_size: int) -> None:
        self._windows = windows
        self._block_size = block_size

    def start(self, sequence: Sequence, match: Match) -> None:
        """The sequence goes on from what matched, whose blocks it has: holds what is read from there on."""
        length = len(match.blocks) * self._block_size
        if match.partial is not None:
            length += match.partial.num_tokens
            self._windows.hold_all(match.partial.source)
        for place, slots in enumerate(self._windows.groups):
            first = max(0, length - slots.size.reach) // self._block_size
            read = match.blocks[first:]
            slots.hold(read)
            slots.note_hit(read)
            sequence.held_from[place], sequence.held_to[place] = min(first, len(match.blocks)), len(match.blocks)
            self._write_table(sequence, place)

    def open(self, sequence: Sequence, end: int) -> None:
        """Slots for what a step writes to the sequence's blocks up to `end`."""
        for place, slots in enumerate(self._windows.groups):
            if end > sequence.held_to[place]:
                for block in sequence.blocks[sequence.held_to[place] : end]:
                    slots.take(block)
                sequence.held_to[place] = end
            elif not sequence.has_moved:
                continue
            self._write_table(sequence, place)
        sequence.has_moved = False

    def note_branches(self, sequence: Sequence, first: int) -> None:
        """The sequence's blocks from `first` on stand in the tree: where others go on, more are likely to."""
        for number in range(max(1, first), sequence.num_committed + 1):
            if len(sequence.blocks[number - 1].children) > 1:
                sequence.marks.add(number)

    def slide(self, sequence: Sequence) -> None:
        """Lets go of what the sequence's next token reads no more."""
        num_full = sequence.num_computed // self._block_size
        for place, slots in enumerate(self._windows.groups):
            start = sequence.held_from[place]
            first = min(num_full - slots.span, sequence.held_to[place])
            if first <= start:
                continue
            self._let_go(sequence, slots, start, first)
            sequence.held_from[place] = first
            sequence.has_moved = True

    def fork(self, trunk: Sequence, twin: Sequence) -> None:
        """The twin has the trunk's full blocks, and reads what the trunk does; it will copy the begun one."""
        if twin.copy_from is not None:
            self._windows.hold_all(twin.copy_from.source)
        for place, slots in enumerate(self._windows.groups):
            first, end = trunk.held_from[place], min(trunk.held_to[place], len(twin.blocks))
            slots.hold(twin.blocks[first:end])
            twin.held_from[place], twin.held_to[place] = first, end
            self._write_table(twin, place)

    def end(self, sequence: Sequence) -> None:
        """The sequence holds nothing any more. Its blocks are still those that it had."""
        if sequence.copy_from is not None:
            self._windows.let_go_all(sequence.copy_from.source)
        for place, slots in enumerate(self._windows.groups):
            slots.let_go(sequence.blocks[sequence.held_from[place] : sequence.held_to[place]], Worth.END)
            sequence.held_from[place] = sequence.held_to[place] = 0

    def let_go_source(self, source: Block) -> None:
        """A block was copied, or will not be."""
        self._windows.let_go_all(source)

    def check_invariants(self, sequences: Items[Sequence]) -> None:
        """Raises AssertionError unless the holds are those of `sequences`, which are all. Only between steps."""
        sources = [each.copy_from.source for each in sequences if each.copy_from is not None]
        for place, slots in enumerate(self._windows.groups):
            held = Counter(sources)
            for sequence in sequences:
                first, end = sequence.held_from[place], sequence.held_to[place]
                read = sequence.blocks[first:end]
                assert len(read) == end - first, "a sequence holds slots of blocks that it has not"
                if sequence.num_computed:
                    needed = max(0, sequence.num_computed - slots.size.reach) // self._block_size
                    assert first <= needed, "a sequence let go of what it still reads"
                    assert end >= sequence.num_computed // self._block_size
                held.update(read)
                table = sequence.tables[slots.group]
                expected = tuple([block.slots[slots.group] for block in read])
                assert sequence.has_moved or table[first:end] == expected, "a table is out of date"
                assert len(table) == len(sequence.blocks)
            slots.check_holds(held)

    def _let_go(self, sequence: Sequence, slots: WindowSlots, start: int, stop: int) -> None:
        """Blocks `start` to `stop`; those before a place from where others are expected to go on are worth more."""
        for mark in self._marks(sequence):
            low, high = max(start, mark - slots.span), min(stop, mark)
            if low < high:
                slots.let_go(sequence.blocks[low:high], Worth.END)
                slots.let_go(sequence.blocks[start:low], Worth.PASSED)
                start = high
        slots.let_go(sequence.blocks[start:stop], Worth.PASSED)

    def _marks(self, sequence: Sequence) -> list[int]:
        """Numbers of blocks, in order: the end of the prompt, and where others go on, or will that wait for it."""
        end = count(sequence.owner.request.prompt) // self._block_size
        return sorted({end, *sequence.marks})

    def _write_table(self, sequence: Sequence, place: int) -> None:
        group = self._windows.groups[place].group
        first, end = sequence.held_from[place], sequence.held_to[place]
        slots = tuple([block.slots[group] for block in sequence.blocks[first:end]])
        table = (ABSENT,) * first + slots + (ABSENT,) * (len(sequence.blocks) - end)
        tables = sequence.tables
        sequence.tables = (*tables[:group], table, *tables[group + 1 :])
