"""Moves the small arrays of a step to the device: packed, in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worker.torch_runner.work_items import Words

_ALIGNMENT = 4
"""Words; 16 bytes."""


def upload(arrays: Sequence[Words], device: torch.device) -> list[Tensor]:
    """The arrays as int32 tensors on `device`, views of one. Empty ones become tensors of no elements."""
    starts = np.cumsum([0, *(-(-array.size // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
    staging = torch.empty(max(1, starts[-1]), dtype=torch.int32, pin_memory=device.type == "cuda")
    words = staging.numpy()
    for start, array in zip(starts, arrays, strict=False):
        words[start : start + array.size] = array.reshape(-1)
    moved = staging.to(device, non_blocking=True)
    return [moved[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=False)]
