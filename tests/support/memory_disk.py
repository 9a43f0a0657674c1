"""Blocks "on disk" in a dict, for tests of what runs in the background: it can be held up and made to fail."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from cache_store.block_name import BlockName
from cache_store.errors import NotStoredError

WAIT_S = 20.0


class MemoryDisk:
    """Implements `worker.mover.DiskFiles`."""

    def __init__(self) -> None:
        self.blocks: dict[BlockName, bytes] = {}
        self.calls: list[tuple[str, object]] = []
        """What was asked for, in order; a held call stands here before it goes on."""
        self.dropped: list[bytes] = []
        """Roots of domains; a call that is never held."""
        self.error: Exception | None = None
        """Raised by every write and read, while set."""
        self.is_closed = False
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def hold(self) -> None:
        """Calls wait from now on."""
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    def write(self, name: BlockName, data: bytearray) -> None:
        self._call("write", name)
        self.blocks[name] = bytes(data)

    def read_into(self, name: BlockName, target: bytearray) -> None:
        self._call("read", name)
        if name not in self.blocks:
            raise NotStoredError("there is no such block")
        target[:] = self.blocks[name]

    def prefetch(self, names: Sequence[BlockName]) -> None:
        """What is in memory is near already."""

    def remove(self, name: BlockName) -> None:
        self._note("remove", name)
        self.blocks.pop(name, None)

    def remove_domains(self, roots: Collection[bytes]) -> None:
        self.dropped += roots
        self.blocks = {name: data for name, data in self.blocks.items() if name.root not in roots}

    def close(self) -> None:
        self.is_closed = True
        self.blocks.clear()

    def _call(self, what: str, of: object) -> None:
        self._note(what, of)
        if self.error is not None:
            raise self.error

    def _note(self, what: str, of: object) -> None:
        self.calls.append((what, of))
        assert self._may_go_on.wait(WAIT_S), "nobody let it go on"
