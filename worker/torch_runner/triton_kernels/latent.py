"""Attention over a latent cache (MLA): one vector per token, whose first part is also the value.

Queries are absorbed: [tokens, query heads, rank + rope]. All query heads read the same vectors, so a program holds
a tile of heads of one token. The parts of a token are merged as those of other kinds.
"""

import triton
import triton.language as tl

from worker.torch_runner.triton_kernels.attend import ITEM_FIELDS
from worker.torch_runner.triton_kernels.tile import PLAIN, capped, decoded, key_places, visible, weighted


@triton.jit
def attend_latent(
    query, latents, scales, out, maxima, sums, tables, items, num_items, scaling, num_heads,
    query_token_stride, query_head_stride, slot_stride, token_stride, scale_slot_stride, scale_token_stride,
    block_size: tl.constexpr, rank: tl.constexpr, rope: tl.constexpr, rank_pad: tl.constexpr, rope_pad: tl.constexpr,
    tile_rows: tl.constexpr, tile_keys: tl.constexpr, coding: tl.constexpr, operand: tl.constexpr,
):  # fmt: skip
    """Program (i, tile of heads) does items i, i + programs, ..., each of one token.

    out [parts, query heads, rank] are sums of weighted values, maxima and sums [parts, query heads] their softmax.
    """
    head = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    held_row = head < num_heads
    rank_d, rope_d = tl.arange(0, rank_pad), tl.arange(0, rope_pad)
    for index in range(tl.program_id(0), tl.load(num_items), tl.num_programs(0)):
        item = items + index * ITEM_FIELDS
        at = query + tl.load(item + 1).to(tl.int64) * query_token_stride + head[:, None] * query_head_stride
        held_rank = held_row[:, None] & (rank_d < rank)[None, :]
        held_rope = held_row[:, None] & (rope_d < rope)[None, :]
        q_rank = tl.load(at + rank_d[None, :], mask=held_rank, other=0.0).to(operand)
        q_rope = tl.load(at + rank + rope_d[None, :], mask=held_rope, other=0.0).to(operand)
        maximum, total, acc = _over_latents(
            q_rank, q_rope, latents, scales, tables + tl.load(item), tl.load(item + 3) + tl.zeros_like(head),
            tl.load(item + 4), tl.load(item + 5), scaling, slot_stride, token_stride, scale_slot_stride,
            scale_token_stride, block_size, rank, rope, rank_pad, rope_pad, tile_rows, tile_keys, coding, operand,
        )  # fmt: skip
        place = tl.load(item + 6).to(tl.int64) * num_heads + head
        tl.store(maxima + place, maximum, mask=held_row)
        tl.store(sums + place, total, mask=held_row)
        tl.store(out + place[:, None] * rank + rank_d[None, :], acc, mask=held_rank)


@triton.jit
def _over_latents(
    q_rank, q_rope, latents, scales, table, query_position, low, high, scaling,
    slot_stride, token_stride, scale_slot_stride, scale_token_stride,
    block_size: tl.constexpr, rank: tl.constexpr, rope: tl.constexpr, rank_pad: tl.constexpr, rope_pad: tl.constexpr,
    tile_rows: tl.constexpr, tile_keys: tl.constexpr, coding: tl.constexpr, operand: tl.constexpr,
):  # fmt: skip
    """Maxima, sums and weighted values of positions low to high - 1; the value is the first part of the vector."""
    rank_d, rope_d = tl.arange(0, rank_pad), tl.arange(0, rope_pad)
    maximum = tl.full((tile_rows,), float("-inf"), tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    acc = tl.zeros((tile_rows, rank_pad), tl.float32)
    for base in range(low // tile_keys * tile_keys, high, tile_keys):
        position = base + tl.arange(0, tile_keys)
        held = (position >= low) & (position < high)
        slot, offset = key_places(table, position, held, block_size)
        at = latents + slot[:, None] * slot_stride + offset[:, None] * token_stride
        held_rank = held[:, None] & (rank_d < rank)[None, :]
        held_rope = held[:, None] & (rope_d < rope)[None, :]
        v = decoded(tl.load(at + rank_d[None, :], mask=held_rank, other=0.0), coding, operand)
        k_rope = decoded(tl.load(at + rank + rope_d[None, :], mask=held_rope, other=0.0), coding, operand)
        scores = tl.dot(q_rope, tl.trans(k_rope), out_dtype=tl.float32, input_precision="ieee")
        scores = tl.dot(q_rank, tl.trans(v), scores, input_precision="ieee") * scaling
        seen = visible(query_position, position, held, 0)
        if coding != PLAIN:
            scale = tl.load(scales + slot * scale_slot_stride + offset * scale_token_stride, mask=held, other=0.0)
            scores = scores * scale[None, :]
        maximum, weights, factor = weighted(capped(scores, 0.0, False), seen, maximum)
        total = total * factor + tl.sum(weights, 1)
        if coding != PLAIN:
            weights = weights * scale[None, :]
        acc = tl.dot(weights.to(operand), v, acc * factor[:, None], input_precision="ieee")
    return maximum, total, acc
