"""What fits, what would make it fit, and what tenants get of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.kv_layout import KvDtype
from cache_store.planning.fit import Fit, RemedyKind, fit
from cache_store.planning.model_shape import Choices, ModelShape, parse_model
from cache_store.planning.pool import Load, blocks_needed, longest_context, requests_that_fit
from cache_store.planning.report import Question, plan
from cache_store.planning.speed import Device, break_even, decode_step, prefill_flops
from cache_store.planning.tenant_parts import tenant_parts
from cache_store.quota import TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from tests.support import published_configs as published

GIB = 1 << 30
NO_SPEEDS = Device(0.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def llama() -> ModelShape:
    return parse_model("llama", published.LLAMA_3_8B, Choices())


def remedies(found: Fit) -> dict[RemedyKind, list[int | str]]:
    values: dict[RemedyKind, list[int | str]] = {}
    for each in found.remedies:
        values.setdefault(each.kind, []).append(each.value)
    return values


def test_each_remedy_alone_makes_it_fit(llama: ModelShape) -> None:
    load = Load(num_requests=64, context=8192, used=1000, shared_prefix=0)
    found = fit(llama, load, 80 * GIB, 2 * GIB)
    assert not found.fits
    assert found.num_requests == 63  # 80 - 2 - 15 GiB of weights, a GiB each
    options = remedies(found)
    assert set(options) == set(RemedyKind) - {RemedyKind.WEIGHTS_DTYPE}
    (fewer,), (shorter,), (memory,) = (
        options[kind] for kind in (RemedyKind.FEWER_REQUESTS, RemedyKind.SHORTER_CONTEXT, RemedyKind.MORE_MEMORY)
    )
    assert isinstance(fewer, int)
    assert isinstance(shorter, int)
    assert isinstance(memory, int)
    assert fit(llama, replace(load, num_requests=fewer), 80 * GIB, 2 * GIB).fits
    assert not fit(llama, replace(load, num_requests=fewer + 1), 80 * GIB, 2 * GIB).fits
    assert fit(llama, replace(load, context=shorter), 80 * GIB, 2 * GIB).fits
    assert not fit(llama, replace(load, context=shorter + 16), 80 * GIB, 2 * GIB).fits
    assert fit(llama, load, memory, 2 * GIB).fits
    assert not fit(llama, load, memory - 1, 2 * GIB).fits
    for dtype in options[RemedyKind.KV_DTYPE]:
        assert fit(replace(llama, kv_dtype=KvDtype(dtype)), load, 80 * GIB, 2 * GIB).fits
    assert options[RemedyKind.AS_USED] == [1000]
    assert options[RemedyKind.MORE_WORKERS] == [2]


def test_weights_that_do_not_fit_leave_no_pool_and_say_what_is_needed() -> None:
    model = parse_model("llama", published.LLAMA_3_8B, Choices(dtype=KvDtype.FLOAT32))
    found = fit(model, Load(1, 8192, 8192, 0), 24 * GIB, 2 * GIB)
    assert (found.pool.num_blocks, found.num_requests, found.fits) == (0, 0, False)
    assert found.room_bytes < 0
    assert remedies(found).keys() == {RemedyKind.WEIGHTS_DTYPE, RemedyKind.MORE_MEMORY}
    smaller = parse_model("llama", published.LLAMA_3_8B, Choices(dtype=KvDtype.BFLOAT16))
    assert fit(smaller, Load(1, 8192, 8192, 0), 24 * GIB, 2 * GIB).fits


@pytest.mark.parametrize(("num_blocks", "expected"), [(0, 0), (9, 0), (10, 1), (15, 1), (16, 2), (21, 2), (22, 3)])
def test_a_shared_prefix_is_kept_once(num_blocks: int, expected: int) -> None:
    load = Load(num_requests=3, context=155, used=155, shared_prefix=70)  # 10 blocks, of which 4 are full and shared
    assert requests_that_fit(load, 16, num_blocks) == expected
    if expected:
        assert blocks_needed(load, 16, expected) <= num_blocks < blocks_needed(load, 16, expected + 1)


def test_the_longest_context_counts_the_shared_prefix_once() -> None:
    load = Load(num_requests=3, context=1 << 20, used=1, shared_prefix=64)
    assert longest_context(load, 16, 4 + 3 * 10 + 2) == 14 * 16


def test_tenants_get_their_parts_and_strict_ones_are_taken_off() -> None:
    quotas = {
        "acme": TenantQuota({TierKind.DEVICE: TierShare(0.25, 1.0)}),
        "globex": TenantQuota({TierKind.DEVICE: TierShare(0.2, 0.2)}),
    }
    load = Load(1, 1600, 1600, 0)
    acme, globex = tenant_parts(quotas, load, 1000, 16)
    assert (acme.guaranteed_blocks, acme.max_blocks, acme.guaranteed_requests, acme.max_requests) == (250, 800, 2, 8)
    assert (globex.guaranteed_blocks, globex.max_blocks, globex.max_pinned_blocks) == (200, 200, 100)
    over = {"a": quotas["acme"], "b": TenantQuota({TierKind.DEVICE: TierShare(0.8, 1.0)})}
    with pytest.raises(PreconditionError, match="only 100 %"):
        tenant_parts(over, load, 1000, 16)


def test_a_step_reads_weights_once_and_every_conversation(llama: ModelShape) -> None:
    device = Device(memory_bytes_per_s=1e12, link_bytes_per_s=0, flops=0, prefill_tokens_per_s=0)
    one, many = (decode_step(llama, device, 8192, number) for number in (1, 16))
    assert one.kv_bytes == GIB
    assert many.kv_bytes == 16 * GIB
    assert one.weights_bytes == many.weights_bytes == llama.weights.total_bytes - llama.weights.lookup_bytes
    assert many.step_s == pytest.approx((16 * GIB + many.weights_bytes) / 1e12)
    assert decode_step(llama, NO_SPEEDS, 8192, 1).step_s == 0


def test_more_tokens_touch_more_experts() -> None:
    weights = parse_model("oss", published.GPT_OSS_120B, Choices()).weights
    one, some, all_of_them = (weights.step_bytes(number) for number in (1, 32, 100_000))
    assert one == pytest.approx(weights.dense_bytes + weights.expert_bytes * 4 / 128)
    assert one < some < all_of_them
    assert all_of_them == pytest.approx(weights.dense_bytes + weights.expert_bytes)


def test_loading_is_worth_it_above_one_speed_of_the_link(llama: ModelShape) -> None:
    speeds = Device(memory_bytes_per_s=0, link_bytes_per_s=10e9, flops=0, prefill_tokens_per_s=8192)
    found = break_even(llama, speeds, 8192)
    assert found.compute_s == pytest.approx(1)
    assert found.link_bytes_per_s == pytest.approx(GIB)
    at_par = break_even(llama, replace(speeds, link_bytes_per_s=found.link_bytes_per_s), 8192)
    assert at_par.load_s == pytest.approx(at_par.compute_s)
    by_flops = break_even(llama, Device(0, 0, 100e12, 0), 8192)
    assert by_flops.compute_s == pytest.approx(by_flops.compute_flops / 100e12)
    assert by_flops.link_bytes_per_s == pytest.approx(by_flops.bytes_per_flop * 100e12)


def test_windows_bound_the_work_of_attention() -> None:
    windowed = parse_model("mistral", published.MISTRAL_7B, Choices())
    full = parse_model("mistral", {**published.MISTRAL_7B, "sliding_window": None}, Choices())
    assert prefill_flops(windowed, 4096) == prefill_flops(full, 4096)
    beyond = prefill_flops(windowed, 32_768) - prefill_flops(windowed, 16_384)
    before = prefill_flops(windowed, 16_384) - prefill_flops(windowed, 8_192)
    assert beyond == pytest.approx(2 * before, rel=1e-6)  # linear beyond the window


def test_a_load_that_the_model_cannot_have_is_refused(llama: ModelShape) -> None:
    question = Question(Load(1, 8193, 8193, 0), 0, 0, NO_SPEEDS, {}, ())
    with pytest.raises(InvalidRequestError, match=r"8,193 tokens of context, but llama knows 8,192"):
        plan(llama, question)
    with pytest.raises(InvalidRequestError, match="lower them"):
        plan(llama, replace(question, load=Load(1, 100, 101, 0)))


def test_windows_need_slots_for_what_runs_and_for_the_cache() -> None:
    model = parse_model("oss", published.GPT_OSS_120B, Choices())
    load = Load(16, 131_072, 131_072, 0)
    found = fit(model, load, 141 * GIB, 2 * GIB)
    full, window = (group.bytes_per_block for group in model.geometry.groups)
    assert found.pool.num_slots[0] == found.pool.num_blocks
    assert found.pool.num_slots[1] < found.pool.num_blocks / 6
    assert found.pool.size_bytes == full * found.pool.num_slots[0] + window * found.pool.num_slots[1]
    assert found.room_bytes - found.pool.size_bytes < full + window
    assert found.num_requests > 1.7 * (found.room_bytes // (131_072 * 72 * 1024))


def test_what_workers_do_not_cache_is_not_planned() -> None:
    with pytest.raises(InvalidRequestError, match="cached as such, int8 or float8_e4m3, not float32"):
        parse_model("llama", published.LLAMA_3_8B, Choices(kv_dtype=KvDtype.FLOAT32))
    with pytest.raises(InvalidRequestError, match="latents are not cached as int8"):
        parse_model("deepseek", published.DEEPSEEK_V2, Choices(kv_dtype=KvDtype.INT8))
    latent = parse_model("deepseek", published.DEEPSEEK_V2, Choices(weights_bytes=440 * GIB))
    options = remedies(fit(latent, Load(64, 131_072, 131_072, 0), 640 * GIB, 2 * GIB))
    assert RemedyKind.KV_DTYPE not in options
