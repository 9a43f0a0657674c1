"""Copies and scrubs by Triton, interpreted: the bytes that plain torch writes, and no others."""

from __future__ import annotations

import math

import pytest
import torch

from cache_store.kv_layout import GroupShape, KvDtype
from worker.step_plan import SlotCopy, SlotRef
from worker.torch_runner.pools import KvPools
from worker.torch_runner.triton_blocks import TritonBlocks

SHAPES = (GroupShape(0, 3, 8, 6, (0, 2)), GroupShape(24, 1, 20, 0, (1,)))
COPIES = (SlotCopy(0, 1, 4, 3), SlotCopy(1, 0, 2, 5), SlotCopy(0, 3, 0, 1))
SCRUBS = (SlotRef(1, 1), SlotRef(0, 2), SlotRef(1, 3))


def pools_of(dtype: KvDtype, block_size: int) -> KvPools:
    pools = KvPools(SHAPES, (5, 4), block_size, dtype, torch.device("cpu"), math.nan)
    generator = torch.Generator().manual_seed(5)
    for group in pools.groups:
        group.bytes.copy_(torch.randint(256, group.bytes.shape, generator=generator))
    return pools


@pytest.mark.parametrize("block_size", [16, 5])
@pytest.mark.parametrize("dtype", KvDtype)
def test_bytes_are_those_that_plain_torch_writes(dtype: KvDtype, block_size: int) -> None:
    expected, pools = pools_of(dtype, block_size), pools_of(dtype, block_size)
    for writes in (expected, TritonBlocks(pools)):
        writes.scrub(SCRUBS)
        writes.copy(COPIES)
    for group, wanted in zip(pools.groups, expected.groups, strict=True):
        assert torch.equal(group.bytes, wanted.bytes)


def test_nothing_to_do_is_nothing_done() -> None:
    pools = pools_of(KvDtype.BFLOAT16, 16)
    before = [group.bytes.clone() for group in pools.groups]
    blocks = TritonBlocks(pools)
    blocks.scrub(())
    blocks.copy(())
    assert all(torch.equal(group.bytes, was) for group, was in zip(pools.groups, before, strict=True))
