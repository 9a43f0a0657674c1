"""Sealed blocks as a stream of chunks: cut at the worker that has them, put together and opened at the one that asked.

Pure. What opens is exactly the blocks whose names the asker made of its own prompt, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cache_store.block_name import BlockName
from cache_store.block_seal import TAG_BYTES, BlockSeal, head_bytes
from cache_store.errors import CorruptDataError

CHUNK_BYTES = 512 << 10
"""Of one message at most."""


def sealed_chunks(seal: BlockSeal, names: Sequence[BlockName], blocks: Sequence[bytearray]) -> Iterator[bytes]:
    """Blocks, sealed one after the other, in chunks of CHUNK_BYTES; the last one ends with the last block."""
    pending = bytearray()
    for name, block in zip(names, blocks, strict=True):
        body = bytearray(len(block) + TAG_BYTES)
        pending += seal.seal(name, block, body)
        pending += body
        while len(pending) >= CHUNK_BYTES:
            yield bytes(pending[:CHUNK_BYTES])
            del pending[:CHUNK_BYTES]
    if pending:
        yield bytes(pending)


class BlockAssembler:
    """Of one answer."""

    def __init__(self, seal: BlockSeal, names: Sequence[BlockName], block_bytes: int) -> None:
        self._seal = seal
        self._names = names
        self._block_bytes = block_bytes
        self._pending = bytearray()
        self.blocks: list[bytearray] = []
        """Those that came whole, from the first name on."""

    @property
    def is_complete(self) -> bool:
        """Whether everything has come."""
        return len(self.blocks) == len(self._names)

    def feed(self, chunk: bytes) -> None:
        """Takes what comes next. Raises CorruptDataError where it is not the next block, or more than was asked for."""
        self._pending += chunk
        while not self.is_complete:
            name = self._names[len(self.blocks)]
            num_head = head_bytes(name, self._block_bytes)
            num_all = num_head + self._block_bytes + TAG_BYTES
            if len(self._pending) < num_all:
                return
            block = bytearray(self._block_bytes)
            view = memoryview(self._pending)
            try:
                self._seal.open(name, view[:num_head], view[num_head:num_all], block)
            finally:
                view.release()
            self.blocks.append(block)
            del self._pending[:num_all]
        if self._pending:
            raise CorruptDataError("more comes than was asked for")
