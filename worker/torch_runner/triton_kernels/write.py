"""Writes the keys and values of a step's tokens to their slots, quantised where the cache is.

A scale per token and head: the largest magnitude becomes the largest number of the coding. Rounding is half to even,
written out, so that all devices and the CPU store the same bytes.
"""

import triton
import triton.language as tl

from worker.torch_runner.triton_kernels.tile import INT8, PLAIN

ROUND: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 × 2^23: adding it leaves no fraction
INT8_MAX: tl.constexpr = tl.constexpr(127.0)
FLOAT8_MAX: tl.constexpr = tl.constexpr(448.0)


@triton.jit
def as_float8_bits(x):
    """e4m3 of numbers up to 448 in magnitude: halves to even, subnormals below 2^-6."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    rounded = magnitude + 0x7FFFF + ((magnitude >> 20) & 1)
    normal = (rounded >> 20) - (120 << 3)
    small = (magnitude.to(tl.float32, bitcast=True) * 512.0 + ROUND) - ROUND
    return (sign | tl.where(magnitude < 0x3C800000, small.to(tl.int32), normal)).to(tl.uint8)


@triton.jit
def _store(
    vectors, to, scales, token, head, slot, offset, held_row, token_stride, head_stride, to_slot_stride,
    to_token_stride, to_head_stride, scale_slot_stride, scale_token_stride,
    width: tl.constexpr, width_pad: tl.constexpr, coding: tl.constexpr,
):  # fmt: skip
    """Vectors of (token, head) pairs to their slots."""
    d = tl.arange(0, width_pad)
    held = held_row[:, None] & (d < width)[None, :]
    at = vectors + token * token_stride + head * head_stride
    read = tl.load(at[:, None] + d[None, :], mask=held, other=0.0)
    at = to + slot * to_slot_stride + offset * to_token_stride + head * to_head_stride
    at = at[:, None] + d[None, :]
    if coding == PLAIN:
        tl.store(at, read, mask=held)
    else:
        exact = read.to(tl.float32)
        scale = tl.max(tl.abs(exact), 1) / (INT8_MAX if coding == INT8 else FLOAT8_MAX)
        scaled = exact / tl.where(scale > 0.0, scale, 1.0)[:, None]
        if coding == INT8:
            tl.store(at, ((scaled + ROUND) - ROUND).to(tl.int8), mask=held)
        else:
            tl.store(at, as_float8_bits(scaled), mask=held)
        tl.store(scales + slot * scale_slot_stride + offset * scale_token_stride + head, scale, mask=held_row)


@triton.jit
def write(
    key, value, keys, values, key_scales, value_scales, slots, offsets, num_tokens,
    key_token_stride, key_head_stride, value_token_stride, value_head_stride,
    keys_slot_stride, keys_token_stride, keys_head_stride, values_slot_stride, values_token_stride, values_head_stride,
    scale_slot_stride, scale_token_stride,
    num_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr, key_pad: tl.constexpr,
    value_pad: tl.constexpr, tile_rows: tl.constexpr, coding: tl.constexpr,
):  # fmt: skip
    """Program i: the pairs of token and key head from i * tile_rows on. A slot below 0 is nowhere: padding."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    token, head = (row // num_heads).to(tl.int64), row % num_heads
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1).to(tl.int64)
    offset = tl.load(offsets + token, mask=token < num_tokens, other=0)
    _store(
        key, keys, key_scales, token, head, slot, offset, slot >= 0, key_token_stride, key_head_stride,
        keys_slot_stride, keys_token_stride, keys_head_stride, scale_slot_stride, scale_token_stride,
        key_dim, key_pad, coding,
    )  # fmt: skip
    if value_dim > 0:
        _store(
            value, values, value_scales, token, head, slot, offset, slot >= 0, value_token_stride, value_head_stride,
            values_slot_stride, values_token_stride, values_head_stride, scale_slot_stride, scale_token_stride,
            value_dim, value_pad, coding,
        )  # fmt: skip
