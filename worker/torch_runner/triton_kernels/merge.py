"""Puts the parts of tokens whose keys were split together, always in order of position."""

import triton
import triton.language as tl

from worker.torch_runner.triton_kernels.tile import normaliser


@triton.jit
def merge(
    partial, maxima, sums, part_starts, part_strides, part_counts, sinks, out,
    num_heads: tl.constexpr, width: tl.constexpr, width_pad: tl.constexpr, tile_heads: tl.constexpr,
    has_sinks: tl.constexpr,
):  # fmt: skip
    """Program (token, tile of query heads). partial [parts, num_heads, width]; a token without parts gets zeros.

    Parts of token t: start, start + stride, ...: `part_counts[t]` of them.
    """
    token = tl.program_id(0)
    head = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)
    held_head = head < num_heads
    start, stride, count = tl.load(part_starts + token), tl.load(part_strides + token), tl.load(part_counts + token)
    d = tl.arange(0, width_pad)
    held = held_head[:, None] & (d < width)[None, :]
    maximum = tl.full((tile_heads,), float("-inf"), tl.float32)
    total = tl.zeros((tile_heads,), tl.float32)
    acc = tl.zeros((tile_heads, width_pad), tl.float32)
    for part in range(count):
        place = (start + part * stride).to(tl.int64) * num_heads + head
        part_maximum = tl.load(maxima + place, mask=held_head, other=float("-inf"))
        highest = tl.maximum(maximum, part_maximum)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        before, now = tl.exp2(maximum - base), tl.exp2(part_maximum - base)
        total = total * before + tl.load(sums + place, mask=held_head, other=0.0) * now
        values = tl.load(partial + place[:, None] * width + d[None, :], mask=held, other=0.0)
        acc = acc * before[:, None] + values * now[:, None]
        maximum = highest
    acc = acc * normaliser(maximum, total, sinks, head, held_head, has_sinks)[:, None]
    place = token.to(tl.int64) * num_heads + head
    tl.store(out + place[:, None] * width + d[None, :], acc, mask=held)
