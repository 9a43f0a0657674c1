"""Pools: bytes by the formula, scrubs, copies."""

from __future__ import annotations

import math

import pytest
import torch

from cache_store.errors import InvalidRequestError
from worker.model_files.layers import GroupShape
from worker.step_plan import SlotCopy, SlotRef
from worker.torch_runner.pools import KvPools

FULL = GroupShape(window=0, num_kv_heads=3, head_dim=8, layers=(0, 2, 4))
SLIDING = GroupShape(window=24, num_kv_heads=2, head_dim=16, layers=(1, 3))


@pytest.fixture
def pools() -> KvPools:
    made = KvPools((FULL, SLIDING), 6, 16, torch.float32, torch.device("cpu"), math.nan)
    for group in made.groups:
        group.blocks.copy_(torch.arange(group.blocks.numel()).view(group.blocks.shape))
    return made


def test_bytes_of_the_storage_follow_the_formula(pools: KvPools) -> None:
    num_tokens = 6 * 16
    full, sliding = 2 * 3 * 3 * 8 * num_tokens * 4, 2 * 2 * 2 * 16 * num_tokens * 4
    assert [group.blocks.untyped_storage().nbytes() for group in pools.groups] == [full, sliding]
    assert pools.size_bytes == full + sliding


def test_fresh_pools_hold_what_they_were_told_to() -> None:
    made = KvPools((FULL,), 2, 16, torch.float32, torch.device("cpu"), math.nan)
    assert made.groups[0].blocks.isnan().all()


def test_a_layer_has_its_place_in_its_group(pools: KvPools) -> None:
    assert [pools.place(layer) for layer in range(5)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    keys, values = pools.groups[0].layer(1)
    assert keys.shape == values.shape == (6, 16, 3, 8)
    assert torch.equal(keys, pools.groups[0].blocks[:, 1, 0])
    assert torch.equal(values, pools.groups[0].blocks[:, 1, 1])


def test_a_scrub_overwrites_its_slot_of_its_group_only(pools: KvPools) -> None:
    before = [group.blocks.clone() for group in pools.groups]
    pools.scrub((SlotRef(1, 2), SlotRef(1, 4)))
    assert torch.equal(pools.groups[0].blocks, before[0])
    for slot in range(6):
        if slot in (2, 4):
            assert pools.groups[1].blocks[slot].isnan().all()
        else:
            assert torch.equal(pools.groups[1].blocks[slot], before[1][slot])


def test_a_copy_takes_the_first_tokens_in_all_layers_of_its_group(pools: KvPools) -> None:
    before = [group.blocks.clone() for group in pools.groups]
    pools.copy((SlotCopy(group=0, source=1, target=5, num_tokens=7),))
    after = pools.groups[0].blocks
    assert torch.equal(after[5, :, :, :7], before[0][1, :, :, :7])
    assert torch.equal(after[5, :, :, 7:], before[0][5, :, :, 7:])
    assert torch.equal(after[:5], before[0][:5])
    assert torch.equal(pools.groups[1].blocks, before[1])


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(InvalidRequestError, match="needs blocks"):
        KvPools((FULL,), num_blocks, block_size, torch.float32, torch.device("cpu"), 0.0)
