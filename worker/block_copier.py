"""Bytes of blocks between device, host and buffers: what transfers ask of a runner's pools.

`ArrayCopier` serves every runner whose device is this machine's memory, whatever its elements are: it sees bytes. A
host slot holds one block of all cache groups, one group after the other. Knows slots, not whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cache_store.errors import CorruptDataError
from cache_store.pool_sizes import ABSENT
from cache_store.transfers import HostStore

ByteArray = npt.NDArray[np.uint8]
Readable = bytes | bytearray | memoryview


class BlockCopier(Protocol):
    """Moves whole blocks. Two threads at most: the engine's and one that loads, never for the same slots at once."""

    @property
    def num_host_blocks(self) -> int:
        """Slots of the host pool."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of all cache groups."""
        ...

    def store(self, stores: Sequence[HostStore]) -> None:
        """Device to host. On the engine's thread; what it reads may be overwritten afterwards by that thread."""
        ...

    def scrub(self, host_slots: Sequence[int]) -> None:
        """Overwrites host slots. On the engine's thread."""
        ...

    def read(self, host_slot: int, into: memoryview) -> None:
        """Copies a host slot into a buffer of `block_bytes`. On the engine's thread."""
        ...

    def read_device(self, slots: Sequence[int], into: memoryview) -> None:
        """Copies a block of the device, which has a slot in every group, into a buffer. On the engine's thread."""
        ...

    def begin_loads(self) -> None:
        """What the engine's thread did to the device until now comes before the loads that follow. On that thread."""
        ...

    def load(self, host_slot: int, slots: Sequence[int]) -> None:
        """Host to device, one slot per group or none; there when it returns. On the thread that loads."""
        ...

    def fill(self, data: Readable, slots: Sequence[int]) -> None:
        """The same out of a buffer. Raises CorruptDataError where it has another length than a block."""
        ...


class ArrayCopier:
    """A `BlockCopier` over the memory of this machine. numpy lets other threads run while it copies."""

    def __init__(self, pools: Sequence[ByteArray], num_host_blocks: int, poison: ByteArray) -> None:
        """`pools`: [slots, bytes of one block] per group, views of what the runner computes on.

        `poison` [block_bytes] is what unwritten and scrubbed host slots hold. The host pool is taken from the system
        here, all of it.
        """
        self._pools = tuple(pools)
        ends = np.cumsum([pool.shape[1] for pool in pools]).tolist()
        self._parts = tuple(slice(end - pool.shape[1], end) for pool, end in zip(pools, ends, strict=True))
        assert poison.shape == (ends[-1],), "the poison is one block"
        self._poison = poison
        self._num_host_blocks = num_host_blocks
        self.host: ByteArray = np.empty((num_host_blocks, ends[-1]), dtype=np.uint8)
        self.host[:] = poison

    @property
    def num_host_blocks(self) -> int:
        return self._num_host_blocks

    @property
    def block_bytes(self) -> int:
        return len(self._poison)

    def store(self, stores: Sequence[HostStore]) -> None:
        for store in stores:
            for pool, part, slot in zip(self._pools, self._parts, store.slots, strict=True):
                np.copyto(self.host[store.host_slot, part], self._poison[part] if slot == ABSENT else pool[slot])

    def scrub(self, host_slots: Sequence[int]) -> None:
        for slot in host_slots:
            np.copyto(self.host[slot], self._poison)

    def read(self, host_slot: int, into: memoryview) -> None:
        np.copyto(np.frombuffer(into, dtype=np.uint8), self.host[host_slot])

    def read_device(self, slots: Sequence[int], into: memoryview) -> None:
        block = np.frombuffer(into, dtype=np.uint8)
        for pool, part, slot in zip(self._pools, self._parts, slots, strict=True):
            np.copyto(block[part], pool[slot])

    def begin_loads(self) -> None:
        """Memory of one machine is seen in order."""

    def load(self, host_slot: int, slots: Sequence[int]) -> None:
        self._fill(self.host[host_slot], slots)

    def fill(self, data: Readable, slots: Sequence[int]) -> None:
        if len(data) != self.block_bytes:
            raise CorruptDataError(f"a block has {self.block_bytes} bytes here, not {len(data)}")
        self._fill(np.frombuffer(data, dtype=np.uint8), slots)

    def _fill(self, block: ByteArray, slots: Sequence[int]) -> None:
        for pool, part, slot in zip(self._pools, self._parts, slots, strict=True):
            if slot != ABSENT:
                np.copyto(pool[slot], block[part])
