"""Copies and scrubs of blocks, all of a step in one launch each."""

import triton
import triton.language as tl


@triton.jit
def copy_tokens(words, copies, regions, block_words, tile: tl.constexpr):
    """Program (copy, region): the first tokens of a block's region.

    `words` is a pool as [slots, block_words] of int32; `copies` [n, 3]: source, target, tokens; `regions` [m, 2]: first
    word of a layer's keys, values or scales in a block, words per token there.
    """
    copy = copies + tl.program_id(0) * 3
    region = regions + tl.program_id(1) * 2
    start, num_words = tl.load(region), tl.load(region + 1) * tl.load(copy + 2)
    source = words + tl.load(copy).to(tl.int64) * block_words + start
    target = words + tl.load(copy + 1).to(tl.int64) * block_words + start
    for base in range(0, num_words, tile):
        place = base + tl.arange(0, tile)
        held = place < num_words
        tl.store(target + place, tl.load(source + place, mask=held), mask=held)


@triton.jit
def scrub(words, slots, poison, block_words, tile: tl.constexpr):
    """Program (scrub, part of a block): overwrites a block with `poison` [block_words]."""
    place = tl.program_id(1) * tile + tl.arange(0, tile)
    held = place < block_words
    target = words + tl.load(slots + tl.program_id(0)).to(tl.int64) * block_words
    tl.store(target + place, tl.load(poison + place, mask=held), mask=held)
