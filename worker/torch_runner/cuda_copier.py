"""Blocks between a GPU and pinned host memory: stores on the stream that computes, loads on one of their own.

A load waits on the GPU for everything that the computing stream was given before the load was started, so that neither
a scrub nor a store of its plan can come after it. Whoever reads host memory on the CPU waits for the last store. Owned
by one runner; `load` and `fill` are called by one other thread. It needs a CUDA device, and none has run it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from cache_store.errors import CorruptDataError
from cache_store.pool_sizes import ABSENT
from cache_store.transfers import HostStore
from worker.block_copier import Readable
from worker.torch_runner.pools import KvPools


class CudaCopier:
    """A `BlockCopier` over the pools of a GPU."""

    def __init__(self, pools: KvPools, num_host_blocks: int) -> None:
        self._device = pools.device
        self._blocks = [group.bytes for group in pools.groups]
        ends = list(accumulate(blocks.shape[1] for blocks in self._blocks))
        self._parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self._block_bytes = ends[-1]
        self._poison = pools.poison_block()
        pinned = self._device.type == "cuda"
        self.host = torch.empty((num_host_blocks, self._block_bytes), dtype=torch.uint8, pin_memory=pinned)
        self.host[:] = self._poison
        self._buffer = torch.empty(self._block_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch has no type for it
        self._stored = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no type for it
        self._before_loads = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no type for it

    @property
    def num_host_blocks(self) -> int:
        return self.host.shape[0]

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    def store(self, stores: Sequence[HostStore]) -> None:
        if any(ABSENT in store.slots for store in stores):
            self._stored.synchronize()  # the CPU writes those parts, at once: nothing on its way may come after it
        for store in stores:
            for part, blocks, slot in zip(self._parts, self._blocks, store.slots, strict=True):
                source = self._poison[part] if slot == ABSENT else blocks[slot]
                self.host[store.host_slot, part].copy_(source, non_blocking=True)
        self._stored.record(torch.cuda.current_stream(self._device))

    def scrub(self, host_slots: Sequence[int]) -> None:
        self._stored.synchronize()
        for slot in host_slots:
            self.host[slot] = self._poison

    def read(self, host_slot: int, into: memoryview) -> None:
        self._stored.synchronize()
        torch.frombuffer(into, dtype=torch.uint8).copy_(self.host[host_slot])

    def read_device(self, slots: Sequence[int], into: memoryview) -> None:
        target = torch.frombuffer(into, dtype=torch.uint8)
        for part, blocks, slot in zip(self._parts, self._blocks, slots, strict=True):
            target[part].copy_(blocks[slot])  # on the computing stream; to memory that is not pinned, so it has ended

    def begin_loads(self) -> None:
        self._before_loads.record(torch.cuda.current_stream(self._device))

    def load(self, host_slot: int, slots: Sequence[int]) -> None:
        self._fill(self.host[host_slot], slots)

    def fill(self, data: Readable, slots: Sequence[int]) -> None:
        if len(data) != self.block_bytes:
            raise CorruptDataError(f"a block has {self.block_bytes} bytes here, not {len(data)}")
        writable = data if isinstance(data, bytearray) else bytearray(data)  # as torch wants it
        self._buffer.copy_(torch.frombuffer(writable, dtype=torch.uint8))
        self._fill(self._buffer, slots)
        self._buffer.zero_()  # it is used for all domains

    def _fill(self, block: Tensor, slots: Sequence[int]) -> None:
        with torch.cuda.stream(self._side):
            self._side.wait_event(self._before_loads)
            for part, blocks, slot in zip(self._parts, self._blocks, slots, strict=True):
                if slot != ABSENT:
                    blocks[slot].copy_(block[part], non_blocking=True)
            self._side.synchronize()
