"""CPU memory in huge pages where the system has them: weights, keys and values are read from end to end in every step,
and a page of 4 KiB costs a walk through the page tables every 64 cache lines.

Memory that is asked for in one piece is what Linux gives huge pages to, so small tensors share pieces.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

PIECE_BYTES = 32 << 20
"""At least that much is asked for at once; what is left over of a piece is never touched, so it takes no memory."""

_ALIGNMENT = 64
"""Cache lines."""


class HugePages:
    """Hands out tensors; their memory goes when the last one of a piece does."""

    def __init__(self) -> None:
        self._piece = mmap.mmap(-1, _ALIGNMENT)
        self._used = len(self._piece)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor on the CPU."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        if self._used + size > len(self._piece):
            self._piece = _map(max(size, PIECE_BYTES))
            self._used = 0
        tensor = torch.frombuffer(self._piece, dtype=dtype, count=count, offset=self._used).view(shape)
        self._used = -(-(self._used + size) // _ALIGNMENT) * _ALIGNMENT
        return tensor

    def copy(self, tensor: Tensor) -> Tensor:
        """The same values, contiguous."""
        return self.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def _map(size: int) -> mmap.mmap:
    piece = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: pages stay small
            piece.madvise(mmap.MADV_HUGEPAGE)
    return piece
