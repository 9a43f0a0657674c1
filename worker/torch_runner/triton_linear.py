"""A linear layer by Triton whose rows keep their bits whatever batch they stand in."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from worker.torch_runner.triton_kernels.linear import linear
from worker.torch_runner.triton_launch import operand_of

_TILE_ROWS, _TILE_OUT = 64, 64


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., inputs] @ weight [outputs, inputs].T + bias, in the type of x; summed in float32, always in one order."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    num_rows, num_in = rows.shape
    num_out = weight.shape[0]
    is_interpreted = bool(triton.knobs.runtime.interpret)
    out = x.new_empty((num_rows, num_out), dtype=torch.float32 if is_interpreted else x.dtype)
    linear[(-(-num_out // _TILE_OUT), -(-num_rows // _TILE_ROWS))](
        rows,
        weight,
        weight if bias is None else bias,
        out,
        num_rows,
        num_out,
        num_in,
        rows.stride(0),
        weight.stride(0),
        tile_rows=_TILE_ROWS,
        tile_out=_TILE_OUT,
        tile_in=64 if x.element_size() <= 2 else 32,
        has_bias=bias is not None,
        operand=operand_of(x.dtype),
        num_warps=4,
        num_stages=3,
    )
    return out.to(x.dtype).view(*x.shape[:-1], num_out)
