"""A linear layer whose rows do not depend on how many there are.

One tile for all sizes of a batch, the inner dimension walked in order by one program: a row's sum is added up in the
same order whatever stands beside it. Libraries choose another order for another number of rows.
"""

import triton
import triton.language as tl


@triton.jit
def linear(
    x, weight, bias, out, num_rows, num_out, num_in, x_stride, weight_stride,
    tile_rows: tl.constexpr, tile_out: tl.constexpr, tile_in: tl.constexpr, has_bias: tl.constexpr,
    operand: tl.constexpr,
):  # fmt: skip
    """Program (tile of outputs, tile of rows): out [num_rows, num_out] = x @ weight.T + bias."""
    row = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    column = tl.program_id(0) * tile_out + tl.arange(0, tile_out)
    held_row, held_column = row < num_rows, column < num_out
    x += row.to(tl.int64)[:, None] * x_stride
    weight += column.to(tl.int64)[None, :] * weight_stride
    acc = tl.zeros((tile_rows, tile_out), tl.float32)
    for base in range(0, num_in, tile_in):
        inner = base + tl.arange(0, tile_in)
        held = inner < num_in
        a = tl.load(x + inner[None, :], mask=held_row[:, None] & held[None, :], other=0.0).to(operand)
        b = tl.load(weight + inner[:, None], mask=held[:, None] & held_column[None, :], other=0.0).to(operand)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    if has_bias:
        acc += tl.load(bias + column, mask=held_column, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * num_out + column[None, :]
    tl.store(out + place, acc, mask=held_row[:, None] & held_column[None, :])
