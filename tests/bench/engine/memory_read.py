"""How fast this machine's memory is read: the limit of a decode step, which reads all weights."""

from __future__ import annotations

import time

import torch

from worker.torch_runner.huge_pages import HugePages

READ_BYTES = 128 << 20
"""More than caches hold."""


class MemoryReader:
    """Reads memory that lies as weights do, with as many threads as torch is set to use."""

    def __init__(self) -> None:
        self._data = HugePages().empty((READ_BYTES // 4,), torch.float32).fill_(1.0)

    def read_s(self) -> float:
        """Seconds of one reading of READ_BYTES."""
        start = time.perf_counter()
        float(self._data.sum())
        return time.perf_counter() - start
