"""Cosines and sines of rotary embeddings by position, as the model's own module gives them; grows with positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_FIRST = 1024


class RotaryTable:
    """Of one model whose angles depend on positions alone. Belongs to one thread."""

    def __init__(self, rotary: nn.Module) -> None:
        self._rotary = rotary
        self.cosines, self.sines = self._compute(_FIRST)
        """[positions, rotary width] each."""

    @property
    def width(self) -> int:
        """Values of a head that are rotated."""
        return self.cosines.shape[1]

    def cover(self, num_positions: int) -> None:
        """Makes the table as long as that, where it is not."""
        length = self.cosines.shape[0]
        if num_positions > length:
            self.cosines, self.sines = self._compute(max(num_positions, 2 * length))

    def _compute(self, length: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(length).unsqueeze(0)
        cosines, sines = self._rotary(torch.empty(0), position_ids=positions)
        return cosines[0].contiguous(), sines[0].contiguous()
