"""An intrusive list of blocks in the order in which they may be evicted. No allocation, every operation O(1)."""

from __future__ import annotations

from collections.abc import Iterator

from cache_store.prefix_tree import Block


class LruList:
    """Blocks that nobody holds, oldest first. A block is in at most one list."""

    __slots__ = ("_length", "_newest", "_oldest")

    def __init__(self) -> None:
        self._oldest: Block | None = None
        self._newest: Block | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._oldest
        while block is not None:
            yield block
            block = block.newer

    def append(self, block: Block) -> None:
        """Adds as the newest."""
        assert block.older is None
        assert block.newer is None
        block.older = self._newest
        if self._newest is None:
            self._oldest = block
        else:
            self._newest.newer = block
        self._newest = block
        self._length += 1

    def remove(self, block: Block) -> None:
        """Takes a block out from anywhere."""
        if block.older is None:
            self._oldest = block.newer
        else:
            block.older.newer = block.newer
        if block.newer is None:
            self._newest = block.older
        else:
            block.newer.older = block.older
        block.older = block.newer = None
        self._length -= 1

    def pop_oldest(self) -> Block:
        """Takes out the oldest; the list must not be empty."""
        assert self._oldest is not None
        block = self._oldest
        self.remove(block)
        return block
