"""How fast this machine's memory is read: the limit of a decode step, which reads all weights."""

from __future__ import annotations

import time

import torch

SIZE_BYTES = 256 << 20
NUM_READS = 5


def read_bytes_per_s(threads: int) -> float:
    """The best of some sums over 256 MiB with so many threads: other programs only ever take from it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    data = torch.ones(SIZE_BYTES // 4)
    best_s = min(_read_s(data) for _ in range(NUM_READS))
    torch.set_num_threads(before)
    return SIZE_BYTES / best_s


def _read_s(data: torch.Tensor) -> float:
    start = time.perf_counter()
    float(data.sum())
    return time.perf_counter() - start
