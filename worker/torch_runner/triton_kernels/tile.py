"""What attention kernels do with one tile of keys and values: read it, score it, fold it into a running softmax.

Scores are in units of log 2, so that weights are powers of two. Elements that are not held are read as zeros, so that
what lies in unwritten slots never counts. Tiles begin at multiples of their size, at absolute positions: a tile that a
row does not see changes nothing of it, to the bit, and so a row's result depends on no other row of its tile.
"""

import triton
import triton.language as tl

PLAIN: tl.constexpr = tl.constexpr(0)
INT8: tl.constexpr = tl.constexpr(1)
FLOAT8: tl.constexpr = tl.constexpr(2)
FLOAT8_BITS: tl.constexpr = tl.constexpr(3)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def decoded(raw, coding: tl.constexpr, operand: tl.constexpr):
    """Stored elements as operands of a product, without their scales; exact in 16 bit already."""
    if coding == FLOAT8_BITS:
        # e4m3 of a byte: sign, 4 bits of exponent, 3 of mantissa. In the place of a float16's they are 2^8 too small.
        wide = raw.to(tl.int32)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        return (bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0).to(operand)
    if coding == FLOAT8:
        return raw.to(tl.float16).to(operand)
    if coding == INT8:
        return raw.to(tl.float32).to(operand)
    return raw.to(operand)


@triton.jit
def key_places(table, position, held, block_size: tl.constexpr):
    """Slot (64 bit, since pools are large) and place inside it of each position."""
    slot = tl.load(table + position // block_size, mask=held, other=0).to(tl.int64)
    return slot, position % block_size


@triton.jit
def capped(scores, softcap, has_softcap: tl.constexpr):
    """Scores in units of log 2; c * tanh(score / c) before that where a model caps them."""
    if has_softcap:
        scores = softcap * (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0)
    return scores * LOG2_E


@triton.jit
def visible(query_position, position, held, window: tl.constexpr):
    """[rows, keys]: which keys each row reads."""
    seen = held[None, :] & (position[None, :] <= query_position[:, None])
    if window > 0:
        seen = seen & (position[None, :] > query_position[:, None] - window)
    return seen


@triton.jit
def weighted(scores, seen, maximum):
    """New maxima, weights of this tile, and the factor on what was summed before."""
    scores = tl.where(seen, scores, float("-inf"))
    highest = tl.maximum(maximum, tl.max(scores, 1))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    return highest, tl.exp2(scores - base[:, None]), tl.exp2(maximum - base)


@triton.jit
def normaliser(maximum, total, sinks, head, held, has_sinks: tl.constexpr):
    """Factor that makes sums of weighted values results; a sink takes weight and gives nothing. 1 where nothing was."""
    factor = tl.full(total.shape, 1.0, tl.float32)
    if has_sinks:
        sink = tl.load(sinks + head, mask=held, other=0.0).to(tl.float32) * LOG2_E
        highest = tl.maximum(maximum, sink)
        factor = tl.exp2(maximum - highest)
        total = total * factor + tl.exp2(sink - highest)
    return factor / tl.where(total == 0.0, 1.0, total)
