"""Whole engine steps with the Triton back end, interpreted: chunks, mixed batches, reuse, copies."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cache_store.kv_layout import KvDtype
from tests.proof.drive import Driver, LogitsTap
from tests.support.reference import generate
from tests.support.runner_drivers import tokens
from tests.support.tiny_models import load_tiny
from worker.config import AttentionKind
from worker.requests import CacheMode
from worker.torch_runner.attention_choice import choose_attention
from worker.torch_runner.loader import LoadedModel, ModelDtype, with_kv_dtype
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.triton_choice import blocks_maker

NUM_TOKENS = 2
LAYER_TYPES = ["sliding_attention", "full_attention"]
LONG = tuple(tokens(40, 1))
PROMPTS = (LONG, tuple(tokens(9, 2)), (*LONG[:24], *tokens(7, 3)))
"""The third shares one and a half blocks with the first."""


def engine_driver(model: LoadedModel, kind: AttentionKind = AttentionKind.TRITON) -> Driver:
    attention = choose_attention(kind, model)
    assert attention.name == kind
    tap = LogitsTap()
    return Driver(
        PagedRunner(model, 64, attention, fill=math.nan, observer=tap, make_blocks=blocks_maker(attention)),
        tap,
        chunk=24,
    )


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
def test_an_engine_over_the_kernels_gives_the_tokens_of_generate(name: str, tmp_path: Path) -> None:
    """Full attention; windows and capped scores; windows and sinks; latents."""
    layer_types = {"layer_types": LAYER_TYPES} if name in ("gemma2", "gpt_oss") else {}
    model = load_tiny(name, tmp_path, num_hidden_layers=2, **layer_types)
    driver = engine_driver(model)
    cold = driver.run(PROMPTS, CacheMode.READ_WRITE, NUM_TOKENS)
    warm = driver.run(PROMPTS[:1], CacheMode.READ_WRITE, NUM_TOKENS)
    for prompt, observed in zip((*PROMPTS, LONG), (*cold, *warm), strict=True):
        expected = generate(model, prompt, NUM_TOKENS)
        assert observed.tokens == expected.tokens
        assert torch.allclose(torch.stack(observed.logits), expected.logits, atol=1e-4, rtol=0)
    assert cold[2].cached_tokens >= 16
    assert warm[0].cached_tokens >= 32


def test_an_engine_in_half_precision_stays_near_full_precision(tmp_path: Path) -> None:
    model = load_tiny("llama", tmp_path, num_hidden_layers=2)
    expected = generate(model, LONG, 1).logits
    half = replace(
        model, dtype=ModelDtype.BFLOAT16, kv_dtype=KvDtype.BFLOAT16, module=model.module.bfloat16(), fused=None
    )
    observed = engine_driver(half).run((LONG,), CacheMode.READ_WRITE, 1)[0]
    scale = float(expected.abs().max())
    assert float((torch.stack(observed.logits) - expected).abs().max()) < 0.05 * scale


@pytest.mark.parametrize("kv_dtype", [KvDtype.INT8, KvDtype.FLOAT8])
def test_a_quantised_cache_is_the_same_as_on_a_cpu(kv_dtype: KvDtype, tmp_path: Path) -> None:
    model = with_kv_dtype(load_tiny("llama", tmp_path, num_hidden_layers=2), kv_dtype)
    ours, plain = (
        engine_driver(model, kind).run(PROMPTS[:2], CacheMode.READ_WRITE, 2)
        for kind in (AttentionKind.TRITON, AttentionKind.GATHER)
    )
    for each, expected in zip(ours, plain, strict=True):
        assert each.tokens == expected.tokens
        assert torch.allclose(torch.stack(each.logits), torch.stack(expected.logits), atol=2e-2, rtol=0)
