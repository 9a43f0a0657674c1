"""Results of all kinds of cache on a device: kernels against attention written out, engines against plain models."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from cache_store.kv_layout import KvDtype
from tests.gpu.report import Report
from tests.proof.drive import Driver, LogitsTap
from tests.support.paged_steps import StepCase, make_step, written_out
from tests.support.reference import generate
from tests.support.runner_drivers import tokens
from tests.support.tiny_models import tiny_model
from worker.config import AttentionKind
from worker.requests import CacheMode
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.attention_choice import choose_attention
from worker.torch_runner.loader import ForwardChoice, LoadedModel, ModelDtype, load_model, with_kv_dtype
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.triton_attention import TritonAttention
from worker.torch_runner.triton_choice import blocks_maker, graphs_maker
from worker.torch_runner.triton_linear import fixed_linear

BOUNDS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Largest difference of a kernel's results, of values of standard deviation 1, from exact ones."""
NUM_TOKENS = 8


@dataclass(frozen=True)
class Scale:
    """How much is tried."""

    rows: tuple[tuple[int, int], ...]
    widths: tuple[int, ...]
    models: tuple[str, ...]
    num_tokens: int


WHOLE = Scale(
    ((1, 1), (255, 1), (256, 1), (3000, 1), (700, 300), (0, 129)),
    (32, 64, 80, 96, 128, 256),
    ("llama", "mistral", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v2", "deepseek_v3"),
    32,
)
QUICK = dataclasses.replace(WHOLE, widths=(64, 128), models=("llama", "gemma2", "gpt_oss", "deepseek_v3"))
INTERPRETED = Scale(((20, 1), (17, 9)), (32,), ("llama",), 2)


def kernel_cases(scale: Scale) -> Iterator[tuple[str, StepCase]]:
    """Heads of all widths and ratios, windows, capped scores, sinks, in all types; quantised caches."""
    kinds = (
        (torch.bfloat16, KvDtype.BFLOAT16),
        (torch.float32, KvDtype.FLOAT32),
        (torch.float16, KvDtype.FLOAT16),
        (torch.bfloat16, KvDtype.INT8),
        (torch.bfloat16, KvDtype.FLOAT8),
    )
    ratios = ((4, 4), (6, 2), (8, 2), (8, 1), (71, 1))
    shapes = (
        {},
        {"window": 100},
        {"softcap": 20.0},
        {"num_sinks": 1},
        {"window": 100, "softcap": 20.0, "num_sinks": 1},
    )
    for dtype, kv_dtype in kinds:
        for index, width in enumerate(scale.widths):
            heads = ratios[index % len(ratios)] if len(scale.widths) > 1 else (2, 1)
            for shape in shapes if len(scale.widths) > 1 else shapes[-1:]:
                changes = {**shape, "num_sinks": heads[0]} if "num_sinks" in shape else shape
                case = StepCase(scale.rows, *heads, width, dtype=dtype, kv_dtype=kv_dtype, **changes)
                yield f"{kv_dtype} below {dtype}, {heads[0]}/{heads[1]} x {width} {shape or ''}", case


def check_kernels(report: Report, device: torch.device, scale: Scale) -> None:
    """Attention over blocks."""
    for name, case in kernel_cases(scale):

        def check(name: str = name, case: StepCase = case) -> None:
            step = make_step(case, str(device))
            result = step.run(TritonAttention(case.layers, (case.shape,), device, case.dtype.itemsize))
            report.expect(name, float((result - written_out(step)).abs().max()), BOUNDS[case.dtype])

        report.attempt(name, check)


def check_fixed_order(report: Report, device: torch.device, scale: Scale) -> None:
    """The same bits whatever stands beside a row: of attention in chunks, of a linear layer in batches."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    kv_dtype = KvDtype.FLOAT32 if device.type == "cpu" else KvDtype.BFLOAT16
    length = 30 if device.type == "cpu" else 700
    case = StepCase(((0, length),), 8, 2, 64, window=100, dtype=dtype, kv_dtype=kv_dtype)
    backend = TritonAttention(case.layers, (case.shape,), device, dtype.itemsize, Order.FIXED)
    whole = make_step(case, str(device))
    expected = whole.run(backend)
    if device.type != "cpu":  # numpy's products, of which the interpreter is made, are not so
        cut = length // 3
        part = make_step(dataclasses.replace(case, rows=((cut, length - cut), (50, 7))), str(device), seed=9)
        target, source = part.plan.rows[0].block_tables[0], whole.plan.rows[0].block_tables[0]
        part.pools.groups[0].bytes[list(target)] = whole.pools.groups[0].bytes[list(source[: len(target)])]
        for name in ("query", "key", "value"):
            getattr(part, name)[:, : length - cut] = getattr(whole, name)[:, cut:]
        result = part.run(backend)[: length - cut]
        report.expect_true("attention: bits of a chunk", torch.equal(result, expected[cut:]))
        x = torch.randn(300, 512, device=device, dtype=dtype)
        weight = torch.randn(384, 512, device=device, dtype=dtype)
        rows = fixed_linear(x, weight, None)
        same = all(torch.equal(fixed_linear(x[i : i + n], weight, None), rows[i : i + n]) for i, n in ((0, 1), (7, 65)))
        report.expect_true("linear layer: bits of rows", same)
        exact = x.double() @ weight.double().T
        report.expect("linear layer", float((rows.double() - exact).abs().max() / exact.abs().max()), 1e-2)
    report.expect("attention in a fixed order", float((expected - written_out(whole)).abs().max()), BOUNDS[dtype])


def prompts(scale: Scale) -> tuple[tuple[int, ...], ...]:
    """Several lengths; the last shares blocks with the first, and a part of one."""
    first = tuple(tokens(24 if scale is INTERPRETED else 90, 1))
    return (first, tuple(tokens(9, 2)), tuple(tokens(17, 3)), (*first[:20], *tokens(7, 4)))


def check_models(report: Report, device: torch.device, scale: Scale) -> None:
    """Whole engines over small models of random weights: chunks, mixed batches, reuse, recorded decoding."""
    with tempfile.TemporaryDirectory() as folder:
        for name in scale.models:
            report.attempt(name, lambda name=name: _check_model(report, device, scale, Path(folder), name))


def _check_model(report: Report, device: torch.device, scale: Scale, folder: Path, name: str) -> None:
    path = tiny_model(name, folder)
    exact = load_model(path, folder / "cache", forward=ForwardChoice.MODULES)
    expected = [generate(exact, prompt, scale.num_tokens) for prompt in prompts(scale)]
    limit = max(float(reference.logits.abs().max()) for reference in expected)
    if device.type == "cpu":
        _compare(report, f"{name} float32", exact, scale, expected, 1e-3 * limit)
        return
    for dtype, bound in ((ModelDtype.FLOAT32, 5e-3), (ModelDtype.BFLOAT16, 0.1)):
        model = load_model(path, folder / "cache", str(device), dtype)
        _compare(report, f"{name} {dtype}", model, scale, expected, bound * limit)
    if not model.latents:
        for kv_dtype in (KvDtype.INT8, KvDtype.FLOAT8):
            _compare(report, f"{name} {kv_dtype}", with_kv_dtype(model, kv_dtype), scale, expected, 0.25 * limit)


def _compare(report: Report, name: str, model: LoadedModel, scale: Scale, expected: list, bound: float) -> None:
    """Logits of tokens up to the first that differs: what follows belongs to another text."""
    tap = LogitsTap()
    attention = choose_attention(AttentionKind.TRITON, model)
    graphs, blocks = graphs_maker(attention, model.device, 8), blocks_maker(attention)
    runner = PagedRunner(model, 128, attention, fill=math.nan, observer=tap, make_graphs=graphs, make_blocks=blocks)
    driver = Driver(runner, tap, chunk=32)
    observed = driver.run(prompts(scale), CacheMode.READ_WRITE, scale.num_tokens)
    warm = driver.run(prompts(scale)[:1], CacheMode.READ_WRITE, scale.num_tokens)
    largest, agreed, drawn = 0.0, 0, 0
    for each, reference in zip((*observed, *warm), (*expected, expected[0]), strict=True):
        for step, logits in enumerate(each.logits[: len(reference.tokens)]):
            largest = max(largest, float((logits.cpu() - reference.logits[step]).abs().max()))
            drawn += 1
            if each.tokens[step] != reference.tokens[step]:
                break
            agreed += 1
    report.expect(f"{name}: logits, {agreed} of {drawn} tokens equal, {_recorded(runner)}", largest, bound)
    report.expect_true(f"{name}: reuse", warm[0].cached_tokens >= 16, f"{warm[0].cached_tokens} tokens")


def _recorded(runner: PagedRunner) -> str:
    return "decoding recorded" if getattr(runner.graphs, "sizes", ()) else "decoding launched"
