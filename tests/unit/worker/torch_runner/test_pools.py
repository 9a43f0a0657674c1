"""Pools: bytes by the formula, scrubs, copies, for every type of element."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import GroupShape, KvDtype
from worker.step_plan import SlotCopy, SlotRef
from worker.torch_runner.pools import GroupPool, KvPools

FULL = GroupShape(window=0, num_kv_heads=3, key_dim=8, value_dim=8, layers=(0, 2, 4))
SLIDING = GroupShape(window=24, num_kv_heads=2, key_dim=16, value_dim=12, layers=(1, 3))
LATENT = GroupShape(window=0, num_kv_heads=1, key_dim=20, value_dim=0, layers=(5,))
CPU = torch.device("cpu")
NUM_SLOTS = (6, 5, 6)


def make_pools(dtype: KvDtype) -> KvPools:
    made = KvPools((FULL, SLIDING, LATENT), NUM_SLOTS, 16, dtype, CPU, math.nan)
    for group in made.groups:
        group.bytes.copy_(torch.arange(group.bytes.numel()).view(group.bytes.shape) % 61)
    return made


@pytest.fixture(params=list(KvDtype))
def pools(request: pytest.FixtureRequest) -> KvPools:
    return make_pools(request.param)


def parts(group: GroupPool) -> list[Tensor]:
    """All that a slot has, first dimension the slots, third the tokens."""
    scales = [part for part in (group.key_scales, group.value_scales) if part is not None]
    return [part.contiguous().view(torch.uint8) for part in (group.keys, group.values, *scales) if part.numel()]


def same(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.contiguous(), right.contiguous())


@pytest.mark.parametrize(("dtype", "element"), [(KvDtype.FLOAT32, 4), (KvDtype.BFLOAT16, 2), (KvDtype.FLOAT16, 2)])
def test_bytes_of_float_pools_follow_the_formula(dtype: KvDtype, element: int) -> None:
    sizes = [group.bytes.untyped_storage().nbytes() for group in make_pools(dtype).groups]
    full, sliding, latent = 3 * 3 * (8 + 8), 2 * 2 * (16 + 12), 20
    assert sizes == [num * 16 * width * element for num, width in zip(NUM_SLOTS, (full, sliding, latent), strict=True)]


@pytest.mark.parametrize("dtype", [KvDtype.INT8, KvDtype.FLOAT8])
def test_quantised_pools_have_a_scale_for_each_token_and_head_of_keys_and_values(dtype: KvDtype) -> None:
    pools = make_pools(dtype)
    sizes = [group.bytes.untyped_storage().nbytes() for group in pools.groups]
    full, sliding, latent = 3 * 3 * (8 + 8 + 2 * 4), 2 * 2 * (16 + 12 + 2 * 4), 20 + 4
    assert sizes == [num * 16 * width for num, width in zip(NUM_SLOTS, (full, sliding, latent), strict=True)]
    assert pools.size_bytes == sum(sizes)


def test_every_byte_of_a_pool_belongs_to_exactly_one_part(pools: KvPools) -> None:
    for group in pools.groups:
        group.bytes.zero_()
        for part in (group.keys, group.values, group.key_scales, group.value_scales):
            if part is not None:
                part.copy_(torch.ones(part.shape))
        covered = sum(part.numel() for part in parts(group))
        assert covered == group.bytes.numel()
        assert all((part.float() == 1).all() for part in (group.keys, group.values))


def test_elements_that_do_not_fill_whole_scales_leave_a_gap_before_them() -> None:
    narrow = replace(FULL, num_kv_heads=1, key_dim=3, value_dim=0, layers=(0,))
    assert narrow.bytes_per_block(1, KvDtype.INT8) == 4 + 4
    pool = GroupPool(narrow, 2, 1, KvDtype.INT8, CPU, math.nan)
    assert pool.key_scales is not None
    pool.keys.fill_(7)
    assert pool.key_scales.isnan().all()


@pytest.mark.parametrize("dtype", list(KvDtype))
def test_fresh_pools_show_that_nothing_was_written(dtype: KvDtype) -> None:
    made = KvPools((FULL, LATENT), (2, 2), 16, dtype, CPU, math.nan)
    for group in made.groups:
        shown = group.keys if group.key_scales is None else group.key_scales
        assert shown.isnan().all()


def test_a_layer_has_its_place_in_its_group(pools: KvPools) -> None:
    assert [pools.place(layer) for layer in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (2, 0)]
    layer = pools.layer(3)
    assert layer.keys.shape == (5, 16, 2, 16)
    assert layer.values.shape == (5, 16, 2, 12)
    assert layer.keys.data_ptr() == pools.groups[1].keys[:, 1].data_ptr()
    assert pools.layer(5).values.shape == (6, 16, 1, 0)
    if layer.value_scales is not None:
        assert layer.value_scales.shape == (5, 16, 2)


def test_a_scrub_overwrites_its_slot_of_its_group_only(pools: KvPools) -> None:
    before = [group.bytes.clone() for group in pools.groups]
    poison = pools.poison_block()
    first = before[0].shape[1]
    pools.scrub((SlotRef(1, 2), SlotRef(1, 4)))
    assert same(pools.groups[0].bytes, before[0])
    for slot in range(NUM_SLOTS[1]):
        is_scrubbed = slot in (2, 4)
        wanted = poison[first : first + before[1].shape[1]] if is_scrubbed else before[1][slot]
        assert same(pools.groups[1].bytes[slot], wanted)


def test_a_copy_takes_the_first_tokens_in_all_layers_of_its_group(pools: KvPools) -> None:
    before = [[part.clone() for part in parts(group)] for group in pools.groups]
    pools.copy((SlotCopy(group=1, source=1, target=4, num_tokens=7),))
    for part, old in zip(parts(pools.groups[1]), before[1], strict=True):
        assert same(part[4, :, :7], old[1, :, :7])
        assert same(part[4, :, 7:], old[4, :, 7:])
        assert same(part[:4], old[:4])
    for group in (0, 2):
        assert all(same(part, old) for part, old in zip(parts(pools.groups[group]), before[group], strict=True))


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(InvalidRequestError, match="needs blocks"):
        KvPools((FULL,), (num_blocks,), block_size, KvDtype.FLOAT32, CPU, 0.0)
