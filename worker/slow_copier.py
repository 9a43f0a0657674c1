"""A copier that takes as long for loads as it is told: real swap times for runners without tensors. Keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache_store.transfers import HostStore
from worker.block_copier import BlockCopier, Readable


class SlowCopier:
    """A `BlockCopier` around another one."""

    def __init__(
        self, inner: BlockCopier, load_block_s: float, disk_block_s: float, sleep: Callable[[float], object]
    ) -> None:
        self._inner = inner
        self._load_block_s = load_block_s
        self._disk_block_s = disk_block_s
        self._sleep = sleep

    @property
    def num_host_blocks(self) -> int:
        return self._inner.num_host_blocks

    @property
    def block_bytes(self) -> int:
        return self._inner.block_bytes

    def store(self, stores: Sequence[HostStore]) -> None:
        self._inner.store(stores)

    def scrub(self, host_slots: Sequence[int]) -> None:
        self._inner.scrub(host_slots)

    def read(self, host_slot: int, into: memoryview) -> None:
        self._inner.read(host_slot, into)

    def read_device(self, slots: Sequence[int], into: memoryview) -> None:
        self._inner.read_device(slots, into)

    def begin_loads(self) -> None:
        self._inner.begin_loads()

    def load(self, host_slot: int, slots: Sequence[int]) -> None:
        self._sleep(self._load_block_s)
        self._inner.load(host_slot, slots)

    def fill(self, data: Readable, slots: Sequence[int]) -> None:
        self._sleep(self._disk_block_s)
        self._inner.fill(data, slots)
