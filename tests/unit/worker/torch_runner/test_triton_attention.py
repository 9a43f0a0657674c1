"""The Triton kernels, interpreted on the CPU, against attention written out token by token in double precision."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from cache_store.errors import PreconditionError
from cache_store.kv_layout import KvDtype
from tests.support.paged_steps import StepCase, make_step, quantised, written_out
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.triton_attention import TritonAttention

ROWS = ((37, 1), (70, 1), (21, 19))
"""Two that are decoded, the second over three ranges of keys, and one chunk of a prompt with history."""
SPLIT = 32
HALF = {"dtype": torch.bfloat16, "kv_dtype": KvDtype.BFLOAT16}
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
CPU = torch.device("cpu")

CASES = {
    "decode at block edges": StepCase(((1, 1), (15, 1), (16, 1), (31, 1), (32, 1), (63, 1)), 2, 2),
    "first token": StepCase(((0, 1),)),
    "prompts": StepCase(((0, 1), (0, 33), (0, 16), (0, 17)), 2, 1),
    "width 32, one head per key head": StepCase(ROWS, 2, 2, 32),
    "width 64, nine heads on three": StepCase(ROWS, 9, 3, 64),
    "width 80, four on one": StepCase(ROWS, 4, 1, 80),
    "width 96, eight on one": StepCase(ROWS, 8, 1, 96),
    "width 128": StepCase(ROWS, 4, 1, 128),
    "width 256": StepCase(ROWS, 2, 1, 256),
    "many heads on one": StepCase(((40, 1), (9, 3)), 71, 1, 32),
    "values of another width": StepCase(ROWS, 4, 2, 24, value_dim=16),
    "window": StepCase(((5, 1), (23, 1), (24, 1), (100, 1), (0, 60)), 2, 1, window=24),
    "window of one": StepCase(((30, 1), (30, 9)), 2, 1, window=1),
    "softcap": StepCase(ROWS, 4, 1, softcap=3.0),
    "sinks": StepCase(ROWS, 4, 1, num_sinks=4),
    "all at once": StepCase(ROWS, 6, 2, window=24, softcap=3.0, num_sinks=6),
    "block of 5": StepCase(ROWS, 4, 1, block_size=5),
    "bfloat16": StepCase(ROWS, 4, 1, 64, **HALF),
    "bfloat16, all at once": StepCase(ROWS, 4, 1, 64, window=24, softcap=3.0, num_sinks=4, **HALF),
    "float16": StepCase(ROWS, 4, 1, 64, dtype=torch.float16, kv_dtype=KvDtype.FLOAT16),
    "int8": StepCase(ROWS, 6, 2, 64, kv_dtype=KvDtype.INT8),
    "int8 below bfloat16": StepCase(ROWS, 4, 1, 64, window=24, dtype=torch.bfloat16, kv_dtype=KvDtype.INT8),
    "float8": StepCase(ROWS, 6, 2, 64, kv_dtype=KvDtype.FLOAT8),
    "float8 below bfloat16": StepCase(ROWS, 4, 1, 64, num_sinks=4, dtype=torch.bfloat16, kv_dtype=KvDtype.FLOAT8),
}


def backend(case: StepCase, order: Order = Order.FREE, split: int = SPLIT) -> TritonAttention:
    return TritonAttention(case.layers, (case.shape,), CPU, case.dtype.itemsize, order, split)


def assert_as_written_out(case: StepCase, order: Order = Order.FREE) -> None:
    step = make_step(case)
    result = step.run(backend(case, order))
    tolerance = TOLERANCE[case.dtype]
    assert torch.allclose(result, written_out(step), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_result_is_that_of_attention_written_out(case: StepCase) -> None:
    assert_as_written_out(case)


@pytest.mark.parametrize("name", ["prompts", "all at once", "int8"])
def test_the_same_in_a_fixed_order(name: str) -> None:
    assert_as_written_out(CASES[name], Order.FIXED)


@pytest.mark.nightly
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (4, 1), (8, 1)])
@pytest.mark.parametrize("width", [32, 64, 80, 96, 128, 256])
def test_result_is_right_over_the_whole_grid(width: int, heads: tuple[int, int]) -> None:
    kinds = [
        {},
        HALF,
        {"dtype": torch.float16, "kv_dtype": KvDtype.FLOAT16},
        {"kv_dtype": KvDtype.INT8},
        {"kv_dtype": KvDtype.FLOAT8},
    ]
    shapes = [{}, {"window": 24}, {"softcap": 3.0}, {"num_sinks": heads[0]}]
    for kind, shape in itertools.product(kinds, shapes):
        assert_as_written_out(StepCase(ROWS, *heads, width, **kind, **shape))


@pytest.mark.parametrize("kv_dtype", [KvDtype.FLOAT32, KvDtype.INT8, KvDtype.FLOAT8])
def test_new_tokens_are_stored_and_nothing_else(kv_dtype: KvDtype) -> None:
    case = StepCase(ROWS, 2, 2, 24, kv_dtype=kv_dtype)
    step = make_step(case)
    before = step.pools.groups[0].bytes.clone()
    step.run(backend(case))
    token = 0
    changed = torch.zeros(before.shape, dtype=torch.bool)
    for (history, new), row in zip(case.rows, step.plan.rows, strict=True):
        for position in range(history, history + new):
            slot, offset = row.block_tables[0][position // 16], position % 16
            for elements, scales, vectors in (
                (step.pool.keys, step.pool.key_scales, step.key),
                (step.pool.values, step.pool.value_scales, step.value),
            ):
                vector = vectors[:, token]
                if scales is None:
                    assert torch.equal(elements[slot, offset], vector)
                else:
                    stored, scale = quantised(vector.unsqueeze(0), kv_dtype)
                    assert torch.equal(scales[slot, offset], scale[0])
                    assert torch.equal(elements[slot, offset].view(torch.uint8), stored[0].view(torch.uint8))
            changed[slot] = True
            token += 1
    after = step.pools.groups[0].bytes
    assert torch.equal(before[~changed], after[~changed])
    per_token = 2 * case.num_kv_heads * (case.key_dim * kv_dtype.element_bytes + kv_dtype.scale_bytes)
    assert int((before != after).sum()) <= token * per_token


def test_a_token_that_nobody_may_read_changes_no_bit() -> None:
    """What lies before a window, or in slots that were not written, may be anything."""
    case = StepCase(((60, 1), (40, 20)), 2, 1, window=24)
    outcomes = []
    for poison in (0.0, float("nan")):
        step = make_step(case)
        for (history, _), row in zip(case.rows, step.plan.rows, strict=True):
            for position in range(history - 24 + 1):
                place = (row.block_tables[0][position // 16], position % 16)
                step.pool.keys[place] = step.pool.values[place] = poison
        outcomes.append(step.run(backend(case)))
    assert torch.equal(*outcomes)


def plain_product(builder: object, a: Any, b: Any, acc: Any, *_: object) -> Any:
    """Adds up each element in the same order, wherever its row lies; numpy's product of matrices does not."""
    products = a.data[:, :, None] * b.data[None]
    return interpreter.TensorHandle(products.sum(1, dtype=acc.data.dtype) + acc.data, acc.dtype.scalar)


@pytest.mark.parametrize("case", [CASES["all at once"], CASES["int8 below bfloat16"]], ids=["fp32", "int8"])
def test_a_fixed_order_gives_the_same_bits_in_any_batch_and_chunk(
    case: StepCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence of 70 tokens at once, and in chunks beside other sequences."""
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", plain_product)
    case = dataclasses.replace(case, num_query_heads=3, num_kv_heads=1, num_sinks=min(3, case.num_sinks), key_dim=16)
    length = 70
    whole = make_step(dataclasses.replace(case, rows=((0, length),)))
    fixed = backend(case, Order.FIXED)
    expected = whole.run(fixed)
    for rows, places in (
        (((0, 33), (5, 20)), slice(0, 33)),
        (((33, 36), (0, 7)), slice(33, 69)),
        (((69, 1), (50, 1), (3, 30)), slice(69, 70)),
    ):
        part = make_step(dataclasses.replace(case, rows=rows), seed=9)
        history, new = rows[0]
        table, source = torch.tensor(part.plan.rows[0].block_tables[0]), whole.plan.rows[0].block_tables[0]
        part.pools.groups[0].bytes[table] = whole.pools.groups[0].bytes[list(source[: len(table)])]
        part.query[:, :new] = whole.query[:, history : history + new]
        part.key[:, :new] = whole.key[:, history : history + new]
        part.value[:, :new] = whole.value[:, history : history + new]
        if part.sinks is not None:
            assert whole.sinks is not None
            part.sinks.copy_(whole.sinks)
        assert torch.equal(part.run(fixed)[:new], expected[places])


def test_without_a_gpu_only_interpreted_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(PreconditionError, match="need a CUDA device"):
        backend(CASES["first token"])
