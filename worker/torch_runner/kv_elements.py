"""Keys and values as elements of a pool, in torch operations, on any device.

Quantised elements have a float32 scale for each token and head: its largest element divided by the largest value of
the type. So the bytes of a token depend on that token only, and not on what was written to its block before or after.
The same rule, to the bit, as `kv_elements.h`.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_VANISHING = 1e-30
"""Rows whose largest element is below are stored as zeros."""


def quantise(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Elements and scales [...] of `rows` [..., width]. Where a row holds NaN or infinity its scale is NaN."""
    rows = rows.float()
    largest = _LARGEST[dtype]
    top = rows.abs().amax(-1)
    vanishes = top < _VANISHING
    poison = (rows * 0.0).sum(-1)
    factor = torch.where(vanishes | poison.isnan(), 0.0, largest / top)
    scaled = torch.where(poison.isnan().unsqueeze(-1), 0.0, rows * factor.unsqueeze(-1))
    elements = scaled.round().to(torch.int8) if dtype is torch.int8 else scaled.clamp(-largest, largest).to(dtype)
    return elements, torch.where(vanishes, poison, top / largest + poison)


def dequantise(elements: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., width] in `dtype` of quantised elements [..., width] and their scales [...]."""
    return (elements.float() * scales.unsqueeze(-1)).to(dtype)


def write(part: Tensor, scales: Tensor | None, places: tuple[Tensor, Tensor], rows: Tensor) -> None:
    """Puts `rows` [tokens, heads, width] at (blocks, offsets) of a pool's `part` [slots, block_size, heads, width]."""
    if scales is None:
        part.index_put_(places, rows.to(part.dtype))
        return
    elements, row_scales = quantise(rows, part.dtype)
    # By bytes: not every device can index elements of 8 bits of floating point.
    part.view(torch.uint8).index_put_(places, elements.view(torch.uint8))
    scales.index_put_(places, row_scales)


def read(part: Tensor, scales: Tensor | None, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """[tokens, heads, width] in `dtype` of the tokens of `blocks`, in order."""
    if scales is None:
        return part.index_select(0, blocks).flatten(0, 1).to(dtype)
    elements = part.view(torch.uint8).index_select(0, blocks).view(part.dtype)
    return dequantise(elements, scales.index_select(0, blocks), dtype).flatten(0, 1)
