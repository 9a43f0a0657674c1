"""Sizes of pools: the figures of a published model, what fits into bytes, and what is always left for who runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.groups import CacheGeometry, CacheGroup, GroupKind
from cache_store.kv_layout import GroupShape, KvDtype, geometry
from cache_store.pool_sizes import (
    PoolSizes,
    StepLimits,
    bytes_held,
    num_held,
    pool_sizes,
    pool_sizes_within,
    span,
    window_sizes,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LIMITS = StepLimits(64, 512)
GPT_OSS_120B = geometry(
    (
        GroupShape(0, 8, 64, 64, tuple(range(1, 36, 2))),
        GroupShape(128, 8, 64, 64, tuple(range(0, 36, 2))),
    ),
    16,
    KvDtype.BFLOAT16,
)
"""36 layers that alternate between a window of 128 tokens and full attention, 8 KV heads of 64."""
MISTRAL_7B = geometry((GroupShape(4_096, 8, 128, 128, tuple(range(32))),), 16, KvDtype.BFLOAT16)


def test_a_running_sequence_of_gpt_oss_holds_its_formula() -> None:
    full, sliding = GPT_OSS_120B.groups
    assert full.bytes_per_block == sliding.bytes_per_block == 16 * 36 * KIB
    assert GPT_OSS_120B.bytes_per_token == 72 * KIB, "if all layers counted"
    fixed = 128 * 36 * KIB
    assert fixed == 4.5 * MIB
    for num_tokens in (2_048, 8_192, 131_072):
        assert bytes_held(GPT_OSS_120B, num_tokens) == num_tokens * 36 * KIB + fixed
    assert bytes_held(GPT_OSS_120B, 131_072) == 4.5 * GIB + fixed
    one_block = 16 * 36 * KIB
    assert bytes_held(GPT_OSS_120B, 8_195) == (8_195 + 13) * 36 * KIB + fixed + one_block, "not at a block's edge"
    assert bytes_held(GPT_OSS_120B, 100) == 112 * 72 * KIB, "shorter than the window"


def test_gpt_oss_gets_half_a_token_more_for_its_bytes() -> None:
    sizes = pool_sizes_within(GPT_OSS_120B, 40 * GIB, LIMITS)
    assert sizes is not None
    assert sizes.size_bytes(GPT_OSS_120B) <= 40 * GIB
    as_before = 40 * GIB // GPT_OSS_120B.bytes_per_block
    assert sizes.num_blocks > 1.7 * as_before
    assert sizes.num_slots[0] == sizes.num_blocks
    (window,) = window_sizes(GPT_OSS_120B, sizes, LIMITS)
    assert window.num_held == 64 * 11 + 32
    assert window.num_cached == sizes.num_blocks // 8


def test_blocks_of_a_model_whose_layers_all_slide_cost_nothing_by_themselves() -> None:
    (group,) = MISTRAL_7B.groups
    assert bytes_held(MISTRAL_7B, 100_000) == 256 * group.bytes_per_block
    sizes = pool_sizes_within(MISTRAL_7B, 80 * GIB, LIMITS)
    assert sizes is not None
    (num_slots,) = sizes.num_slots
    held = num_held(group, 16, LIMITS)
    assert num_slots * group.bytes_per_block <= 80 * GIB
    assert sizes.num_blocks == pytest.approx(2 * (num_slots - held), abs=2), "the cache has slots for a half"


def test_a_small_pool_has_a_slot_for_every_block() -> None:
    assert pool_sizes(GPT_OSS_120B, 1_000, LIMITS) == PoolSizes(1_000, (1_000, 1_000))
    assert window_sizes(GPT_OSS_120B, PoolSizes(1_000, (1_000, 1_000)), LIMITS) == ()
    assert pool_sizes_within(GPT_OSS_120B, GPT_OSS_120B.bytes_per_block - 1, LIMITS) is None
    one = pool_sizes_within(GPT_OSS_120B, GPT_OSS_120B.bytes_per_block, LIMITS)
    assert one == PoolSizes(1, (1, 1))


def test_slots_that_running_sequences_could_use_up_are_refused() -> None:
    with pytest.raises(ValueError, match="group 1 has 735 slots, and running sequences may hold 736"):
        window_sizes(GPT_OSS_120B, PoolSizes(10_000, (10_000, 735)), LIMITS)


def test_groups_that_read_everything_have_a_slot_for_every_block() -> None:
    latent = geometry((GroupShape(0, 1, 576, 0, (0,)),), 16, KvDtype.BFLOAT16)
    assert latent.groups[0].kind is GroupKind.LATENT
    assert pool_sizes(latent, 1 << 20, LIMITS).num_slots == (1 << 20,)
    assert bytes_held(latent, 33) == 48 * 576 * 2


@given(
    windows=st.lists(st.integers(1, 300), max_size=3),
    has_full=st.booleans(),
    block_size=st.sampled_from([1, 8, 16]),
    size_bytes=st.integers(0, 1 << 24),
    num_sequences=st.integers(1, 32),
    num_tokens=st.integers(32, 512),
)
def test_what_fits_into_bytes_fits_and_no_more_does(
    windows: list[int], has_full: bool, block_size: int, size_bytes: int, num_sequences: int, num_tokens: int
) -> None:
    groups = [CacheGroup(GroupKind.FULL, (0,), 100 * block_size, 0)] if has_full else []
    groups += [CacheGroup(GroupKind.SLIDING, (1,), 60 * block_size, window) for window in windows]
    if not groups:
        return
    model, limits = CacheGeometry(tuple(groups), block_size), StepLimits(num_sequences, num_tokens)
    sizes = pool_sizes_within(model, size_bytes, limits)
    least = pool_sizes(model, 1, limits)
    if sizes is None:
        assert least.size_bytes(model) > size_bytes
        return
    assert sizes.size_bytes(model) <= size_bytes
    assert pool_sizes(model, sizes.num_blocks + 1, limits).size_bytes(model) > size_bytes
    for window in window_sizes(model, sizes, limits):
        assert window.num_cached >= window.num_held, "all that run can be kept when they end"


@given(
    window=st.integers(1, 50),
    block_size=st.integers(1, 9),
    computed=st.integers(0, 200),
    num_new=st.integers(1, 60),
)
def test_a_step_touches_no_more_blocks_than_are_counted_for_it(
    window: int, block_size: int, computed: int, num_new: int
) -> None:
    group = CacheGroup(GroupKind.SLIDING, (0,), 1, window)
    first = max(0, computed // block_size - span(window, block_size))
    read_from = max(0, computed + 1 - window)
    assert first * block_size <= read_from, "what is read is held"
    touched = -(-(computed + num_new) // block_size) - first
    assert touched + 1 <= num_held(group, block_size, StepLimits(1, num_new)), "one more is copied"


def test_what_a_token_and_a_sequence_take_is_told_of_the_pools_that_there_are() -> None:
    sizes = pool_sizes(GPT_OSS_120B, 100_000, LIMITS)
    assert sizes.bytes_per_token(GPT_OSS_120B) == 36 * KIB
    assert sizes.bytes_per_sequence(GPT_OSS_120B) == 4.5 * MIB + 16 * 36 * KIB
    small = pool_sizes(GPT_OSS_120B, 1_000, LIMITS)
    assert (small.bytes_per_token(GPT_OSS_120B), small.bytes_per_sequence(GPT_OSS_120B)) == (72 * KIB, 0)
