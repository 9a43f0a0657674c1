"""Attention over blocks: one kernel for decoding and for prefill, by lists of work.

An item (`worker/torch_runner/work_items.py`) is a few successive tokens of one row and a range of its keys. A program
holds the query heads of one key head for these tokens as rows of its products, so key heads are never copied. Where
ranges were split, `merge` puts the parts of a token together, in order of position.
"""

import triton
import triton.language as tl

from worker.torch_runner.triton_kernels.tile import PLAIN, capped, decoded, key_places, normaliser, visible, weighted

ITEM_FIELDS: tl.constexpr = tl.constexpr(8)


@triton.jit
def attend(
    query, keys, values, key_scales, value_scales, sinks, out, maxima, sums, tables, items, num_items, scaling, softcap,
    query_token_stride, query_head_stride, key_slot_stride, key_token_stride, key_head_stride,
    value_slot_stride, value_token_stride, value_head_stride, scale_slot_stride, scale_token_stride,
    block_size: tl.constexpr, group: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    key_pad: tl.constexpr, value_pad: tl.constexpr, tile_rows: tl.constexpr, tile_keys: tl.constexpr,
    window: tl.constexpr, has_softcap: tl.constexpr, has_sinks: tl.constexpr, coding: tl.constexpr,
    operand: tl.constexpr, is_split: tl.constexpr,
):  # fmt: skip
    """Program (i, key head, tile of rows) does items i, i + programs, ...

    query [tokens, query heads, key_dim]. Not split: `out` [tokens, query heads, value_dim] is the result. Split: `out`
    [parts, query heads, value_dim] are sums of weighted values, `maxima` and `sums` [parts, query heads] their softmax.
    """
    key_head = tl.program_id(1)
    num_heads = tl.num_programs(1) * group
    row = tl.program_id(2) * tile_rows + tl.arange(0, tile_rows)
    row_token, head = row // group, key_head * group + row % group
    key_d, value_d = tl.arange(0, key_pad), tl.arange(0, value_pad)
    for index in range(tl.program_id(0), tl.load(num_items), tl.num_programs(0)):
        item = items + index * ITEM_FIELDS
        held_row = row_token < tl.load(item + 2)
        token = (tl.load(item + 1) + row_token).to(tl.int64)
        place = token * query_token_stride + head * query_head_stride
        held_query = held_row[:, None] & (key_d < key_dim)[None, :]
        q = tl.load(query + place[:, None] + key_d[None, :], mask=held_query, other=0.0).to(operand)
        maximum, total, acc = _over_keys(
            q, keys + key_head * key_head_stride, values + key_head * value_head_stride,
            key_scales + key_head, value_scales + key_head, tables + tl.load(item), tl.load(item + 3) + row_token,
            tl.load(item + 4), tl.load(item + 5), scaling, softcap,
            key_slot_stride, key_token_stride, value_slot_stride, value_token_stride,
            scale_slot_stride, scale_token_stride, block_size, key_dim, value_dim, key_pad, value_pad, tile_rows,
            tile_keys, window, has_softcap, coding, operand,
        )  # fmt: skip
        if is_split:
            place = (tl.load(item + 6) + row_token).to(tl.int64) * num_heads + head
            tl.store(maxima + place, maximum, mask=held_row)
            tl.store(sums + place, total, mask=held_row)
        else:
            place = token * num_heads + head
            acc = acc * normaliser(maximum, total, sinks, head, held_row, has_sinks)[:, None]
        held_out = held_row[:, None] & (value_d < value_dim)[None, :]
        tl.store(out + place[:, None] * value_dim + value_d[None, :], acc, mask=held_out)


@triton.jit
def _over_keys(
    q, keys, values, key_scales, value_scales, table, query_position, low, high, scaling, softcap,
    key_slot_stride, key_token_stride, value_slot_stride, value_token_stride, scale_slot_stride, scale_token_stride,
    block_size: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr, key_pad: tl.constexpr,
    value_pad: tl.constexpr, tile_rows: tl.constexpr, tile_keys: tl.constexpr, window: tl.constexpr,
    has_softcap: tl.constexpr, coding: tl.constexpr, operand: tl.constexpr,
):  # fmt: skip
    """Maxima, sums and weighted values of positions low to high - 1 of one row's sequence."""
    key_d, value_d = tl.arange(0, key_pad), tl.arange(0, value_pad)
    maximum = tl.full((tile_rows,), float("-inf"), tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    acc = tl.zeros((tile_rows, value_pad), tl.float32)
    for base in range(low // tile_keys * tile_keys, high, tile_keys):
        position = base + tl.arange(0, tile_keys)
        held = (position >= low) & (position < high)
        slot, offset = key_places(table, position, held, block_size)
        at = slot * key_slot_stride + offset * key_token_stride
        held_key = held[None, :] & (key_d < key_dim)[:, None]
        k = decoded(tl.load(keys + at[None, :] + key_d[:, None], mask=held_key, other=0.0), coding, operand)
        scores = tl.dot(q, k, out_dtype=tl.float32, input_precision="ieee") * scaling
        scale_at = slot * scale_slot_stride + offset * scale_token_stride
        if coding != PLAIN:
            scores = scores * tl.load(key_scales + scale_at, mask=held, other=0.0)[None, :]
        seen = visible(query_position, position, held, window)
        maximum, weights, factor = weighted(capped(scores, softcap, has_softcap), seen, maximum)
        total = total * factor + tl.sum(weights, 1)
        if coding != PLAIN:
            weights = weights * tl.load(value_scales + scale_at, mask=held, other=0.0)[None, :]
        at = slot * value_slot_stride + offset * value_token_stride
        held_value = held[:, None] & (value_d < value_dim)[None, :]
        v = decoded(tl.load(values + at[:, None] + value_d[None, :], mask=held_value, other=0.0), coding, operand)
        acc = tl.dot(weights.to(operand), v, acc * factor[:, None], input_precision="ieee")
    return maximum, total, acc
