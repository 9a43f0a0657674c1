"""A cache that grows by concatenation, with its copies counted as they happen."""

from __future__ import annotations

import torch
from torch import Tensor


class ConcatenatingCache:
    """Keys of one layer; each append makes a new tensor of the old and the new tokens."""

    def __init__(self) -> None:
        self.keys = torch.empty(0, 1)
        self.num_copied_tokens = 0

    def append(self, keys: Tensor) -> None:
        """Adds [tokens, width]."""
        before = self.keys
        self.keys = torch.cat([before, keys])
        if self.keys.data_ptr() != before.data_ptr():
            self.num_copied_tokens += before.shape[0]


def count_copied_tokens(num_tokens: int) -> int:
    """Old tokens that were copied while `num_tokens` were appended one by one."""
    cache = ConcatenatingCache()
    token = torch.zeros(1, 1)
    for _ in range(num_tokens):
        cache.append(token)
    return cache.num_copied_tokens
