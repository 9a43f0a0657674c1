"""What the planner says about published models, beside what is published about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.kv_layout import KvDtype
from cache_store.planning.fit import fit
from cache_store.planning.kv_cost import conversation_bytes, kv_cost
from cache_store.planning.model_shape import Choices, ModelShape, parse_model
from cache_store.planning.pool import Load, reservation
from tests.support import published_configs as published

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
IN_16_BIT = Choices(dtype=KvDtype.BFLOAT16)


def shape(config: dict[str, object], choices: Choices = IN_16_BIT) -> ModelShape:
    return parse_model("model", config, choices)


def test_llama_3_8b_takes_128_kib_for_each_token() -> None:
    model = shape(published.LLAMA_3_8B)
    cost = kv_cost(model)
    assert cost.bytes_per_token == 128 * KIB
    assert cost.fixed_bytes == 0
    assert conversation_bytes(model, 8192) == GIB
    assert cost.kinds[0].formula == "2 × 32 layers × 8 KV heads × 128 wide × 2 B"


def test_llama_2_70b_takes_320_kib_for_each_token() -> None:
    model = shape(published.LLAMA_2_70B)
    assert kv_cost(model).bytes_per_token == 320 * KIB
    assert conversation_bytes(model, 32_000) / GIB == pytest.approx(10, rel=0.03)
    assert conversation_bytes(model, 128 * KIB) == 40 * GIB


def test_gpt_oss_120b_holds_one_window_in_half_of_its_layers() -> None:
    model = shape(published.GPT_OSS_120B)
    cost = kv_cost(model)
    assert cost.bytes_per_token_of_all_layers == 72 * KIB
    assert (cost.bytes_per_token, cost.fixed_bytes) == (36 * KIB, int(4.5 * MIB))
    assert cost.fixed_unaligned_bytes == int(4.5 * MIB) // 8 * 9
    assert conversation_bytes(model, 128 * KIB) == 4.5 * GIB + 4.5 * MIB


def test_deepseek_v2_caches_its_latent_vector() -> None:
    cost = kv_cost(shape(published.DEEPSEEK_V2))
    assert cost.bytes_per_token == 67.5 * KIB == 60 * (512 + 64) * 2
    assert cost.kinds[0].formula == "60 layers × 576 wide × 2 B"


def test_eight_requests_that_reserve_8192_tokens_and_use_1000_leave_7_gib_idle() -> None:
    kept = reservation(shape(published.LLAMA_3_8B), Load(8, 8192, 1000, 0))
    assert kept.reserved_bytes == 8 * GIB
    assert kept.idle_bytes / GIB == pytest.approx(7, rel=0.01)
    assert kept.paged_idle_bytes < 8 * 16 * 128 * KIB  # less than a block each


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (published.LLAMA_3_8B, 8.03, None),
        (published.LLAMA_2_70B, 68.98, None),
        (published.GPT_OSS_120B, 116.83, 5.13),
        (published.DEEPSEEK_V2, 235.7, 21),
        (published.MISTRAL_7B, 7.24, None),
        (published.QWEN_2_5_7B, 7.62, None),
        (published.SMOLLM2_135M, 0.1345, None),
    ],
)
def test_weights_are_as_many_as_published(config: dict[str, object], billions: float, active: float | None) -> None:
    count = shape(config).weights.count
    assert count.total / 1e9 == pytest.approx(billions, rel=0.001)
    if active is not None:
        assert count.active / 1e9 == pytest.approx(active, rel=0.01)


def test_gpt_oss_120b_weighs_what_its_checkpoint_does() -> None:
    assert shape(published.GPT_OSS_120B).weights.total_bytes / GIB == pytest.approx(60.8, abs=0.1)


def test_gemma_3_has_defaults_where_its_file_is_silent() -> None:
    model = shape(published.GEMMA_3_4B)
    assert (model.model_type, model.dtype) == ("gemma3_text", KvDtype.BFLOAT16)
    assert [(group.window, len(group.layers)) for group in model.groups] == [(0, 5), (1024, 29)]
    assert {group.num_kv_heads for group in model.groups} == {4}


def test_a_model_that_only_slides_costs_nothing_per_token() -> None:
    cost = kv_cost(shape(published.MISTRAL_7B))
    assert (cost.bytes_per_token, cost.fixed_bytes) == (0, 4096 * 128 * KIB)


@pytest.mark.parametrize(("dtype", "ratio"), [(KvDtype.INT8, 2 * 128 / (128 + 4)), (KvDtype.FLOAT32, 0.5)])
def test_other_types_of_keys_and_values_change_how_much_fits(dtype: KvDtype, ratio: float) -> None:
    load = Load(1, 8192, 8192, 0)
    weights = 16 * GIB  # whatever they are kept in
    choices = Choices(weights_bytes=weights) if dtype.scale_bytes else Choices(dtype=dtype, weights_bytes=weights)
    model = shape(published.LLAMA_3_8B, Choices(weights_bytes=weights))
    other = shape(published.LLAMA_3_8B, replace(choices, kv_dtype=dtype))
    before, after = (fit(each, load, 80 * GIB, 0).pool.num_blocks for each in (model, other))
    assert after / before == pytest.approx(ratio, rel=0.001)
