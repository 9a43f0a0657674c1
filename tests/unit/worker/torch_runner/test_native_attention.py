"""The C++ kernel, and the fallback without it, against attention written out token by token in double precision."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cache_store.kv_layout import KvDtype
from tests.support.compilers import compiler, needs_compiler
from tests.support.paged_steps import PagedStep, StepCase, make_step, written_out
from worker.step_plan import Row, SequenceId, StepPlan
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.native_attention import NativeAttention
from worker.torch_runner.step_batch import build_batch

ROWS = ((50, 1), (50, 3), (50, 40))
CASES = {
    "decode at block edges": StepCase(((1, 1), (14, 1), (15, 1), (16, 1), (31, 1), (32, 1), (300, 1))),
    "first token": StepCase(((0, 1),)),
    "prefill": StepCase(((0, 77), (0, 1), (0, 16), (0, 17))),
    "chunk with history": StepCase(((40, 1), (33, 50), (16, 3), (1, 2), (700, 40))),
    "one head per key head": StepCase(ROWS, 3, 3),
    "nine heads on three": StepCase(ROWS, 9, 3, 64),
    "many heads on one": StepCase(ROWS, 71, 1, 64),
    "more heads on one than a task takes": StepCase(ROWS, 130, 1, 32),
    "width 32": StepCase(ROWS, key_dim=32),
    "width 80": StepCase(ROWS, key_dim=80),
    "width 96": StepCase(ROWS, key_dim=96),
    "width 128": StepCase(ROWS, key_dim=128),
    "width 256": StepCase(ROWS, key_dim=256),
    "values of another width": StepCase(ROWS, key_dim=192, value_dim=128),
    "window": StepCase(((5, 1), (23, 1), (24, 1), (100, 1), (100, 40), (0, 90)), window=24),
    "window of one": StepCase(((30, 1), (30, 9)), window=1),
    "softcap": StepCase(ROWS, softcap=3.0),
    "sinks": StepCase(ROWS, num_sinks=6),
    "all at once": StepCase(ROWS, window=24, softcap=3.0, num_sinks=6),
    "block of 8": StepCase(((70, 1), (7, 30)), block_size=8),
    "block of 5": StepCase(((70, 1), (7, 30)), block_size=5),
    "long": StepCase(((2100, 1), (1500, 33))),
    "int8": StepCase((*ROWS, (0, 20)), 9, 3, 64, kv_dtype=KvDtype.INT8),
    "int8, all at once": StepCase(ROWS, window=24, softcap=3.0, num_sinks=6, block_size=5, kv_dtype=KvDtype.INT8),
    "int8, values of another width": StepCase(ROWS, 4, 4, 48, value_dim=32, kv_dtype=KvDtype.INT8),
    "int8, many heads on one": StepCase(ROWS, 71, 1, 64, kv_dtype=KvDtype.INT8),
    "float8": StepCase((*ROWS, (0, 20)), 9, 3, 64, kv_dtype=KvDtype.FLOAT8),
    "float8, all at once": StepCase(ROWS, window=24, softcap=3.0, num_sinks=6, kv_dtype=KvDtype.FLOAT8),
    "float8, values of another width": StepCase(ROWS, 4, 4, 48, value_dim=32, kv_dtype=KvDtype.FLOAT8),
    "float8, long": StepCase(((900, 1), (700, 33)), kv_dtype=KvDtype.FLOAT8),
}
QUANTISED = [KvDtype.INT8, KvDtype.FLOAT8]


class Kernels:
    """One library, compiled once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, num_threads: int, order: Order = Order.FREE) -> NativeAttention:
        return NativeAttention(compiler(), self._folder, num_threads, order)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("kernels"))


def assert_written_out(step: PagedStep, backend: NativeAttention | GatherAttention) -> None:
    result = step.run(backend)
    assert torch.allclose(result, written_out(step), atol=2e-5, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("num_threads", [1, 2])
def test_kernel_equals_attention_written_out(kernels: Kernels, case: StepCase, num_threads: int) -> None:
    assert all(kernels(num_threads).supports(layer) for layer in case.layers)
    assert_written_out(make_step(case), kernels(num_threads))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_fallback_equals_attention_written_out(case: StepCase) -> None:
    assert_written_out(make_step(case), GatherAttention())


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("heads", [(3, 3), (9, 3), (8, 2), (8, 1), (30, 1)])
@pytest.mark.parametrize("width", [16, 32, 64, 80, 96, 128, 256])
def test_kernel_is_right_over_the_whole_grid(kernels: Kernels, width: int, heads: tuple[int, int]) -> None:
    kinds = itertools.product((0, 1, 24), (0.0, 3.0), (0, heads[0]), (5, 16, 32), (KvDtype.FLOAT32, *QUANTISED))
    for window, softcap, num_sinks, block_size, kv_dtype in kinds:
        case = StepCase(
            ((40, 1), (0, 1), (300, 1), (33, 7), (20, 40)),
            *heads,
            width,
            window=window,
            softcap=softcap,
            num_sinks=num_sinks,
            block_size=block_size,
            kv_dtype=kv_dtype,
        )
        assert_written_out(make_step(case), kernels(2))


@needs_compiler
def test_new_tokens_are_written_to_their_slots_of_their_layer_only(kernels: Kernels) -> None:
    case = CASES["chunk with history"]
    for backend in (kernels(1), GatherAttention()):
        step = make_step(case)
        step.run(backend)
        token = 0
        for row in step.plan.rows:
            table = torch.tensor(row.block_tables[0])
            for part, fresh in ((step.pool.keys, step.key), (step.pool.values, step.value)):
                written = part[table].flatten(0, 1)[row.start : row.kv_length]
                assert torch.equal(written, fresh[:, token : token + len(row.token_ids)].transpose(0, 1))
            token += len(row.token_ids)
        num_written = sum(row.kv_length for row in step.plan.rows)
        finite = step.pools.groups[0].bytes.view(torch.float32).isfinite().sum()
        assert finite == 2 * num_written * case.num_kv_heads * case.key_dim


@needs_compiler
@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_kernel_and_fallback_store_the_same_bytes(kernels: Kernels, kv_dtype: KvDtype) -> None:
    case = StepCase(((0, 200), (30, 1), (17, 30)), 4, 2, 64, value_dim=48, kv_dtype=kv_dtype)
    stored = []
    for backend in (kernels(1), GatherAttention()):
        step = make_step(case)
        for part in (step.key, step.value):  # all sizes, from nothing to more than half precision holds
            part.mul_(torch.logspace(-38, 30, part.shape[1]).view(1, -1, 1))
            part[:, 5] = 0.0
            part[:, 7, 3] = 1e-6
        step.run(backend)
        stored.append(step.pools.groups[0].bytes)
    assert torch.equal(*stored)


@needs_compiler
@pytest.mark.parametrize("kv_dtype", QUANTISED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so(kernels: Kernels, kv_dtype: KvDtype, bad: float) -> None:
    for backend in (kernels(1), GatherAttention()):
        step = make_step(StepCase(((3, 2),), kv_dtype=kv_dtype))
        step.key[1, 0, 5] = bad
        step.run(backend)
        (slot,) = step.plan.rows[0].block_tables[0]
        assert step.pool.key_scales is not None
        assert step.pool.key_scales[slot].isnan().sum() == step.pool.keys.shape[1] * 2 - (2 * 5 - 1)


def with_tables(step: PagedStep, tables: list[tuple[int, ...]]) -> PagedStep:
    rows = tuple(replace(row, block_tables=(table,)) for row, table in zip(step.plan.rows, tables, strict=True))
    return replace(step, plan=replace(step.plan, rows=rows))


@needs_compiler
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("kv_dtype", [KvDtype.FLOAT32, *QUANTISED])
def test_blocks_that_no_row_of_the_window_reads_need_no_slot(
    kernels: Kernels, num_threads: int, kv_dtype: KvDtype
) -> None:
    case = StepCase(((100, 1), (16 + 24, 1), (200, 40), (300, 3), (0, 60)), window=24, kv_dtype=kv_dtype)
    for backend in (kernels(num_threads), kernels(num_threads, Order.FIXED), GatherAttention()):
        step = make_step(case)
        tables = []
        for row in step.plan.rows:
            first = max(0, row.start - case.window + 1) // case.block_size
            tables.append((-1,) * first + row.block_tables[0][first:])
        result = with_tables(step, tables).run(backend)
        assert torch.allclose(result, written_out(step), atol=2e-5, rtol=1e-4)


SHARED = {
    "decoding": StepCase(((300, 1), (400, 1), (290, 1), (310, 1), (1000, 1))),
    "decoding and short chunks": StepCase(((600, 1), (520, 1), (530, 3), (515, 16), (513, 1)), 9, 3, 64),
    "one head": StepCase(((600, 1), (520, 1), (700, 1)), 4, 1, 32),
    "sinks and softcap": StepCase(((600, 1), (520, 1), (700, 1)), softcap=3.0, num_sinks=6),
    "a chunk too long for it": StepCase(((600, 1), (600, 40), (600, 1))),
    "block of 5": StepCase(((600, 1), (601, 1), (603, 1)), block_size=5),
    "int8": StepCase(((600, 1),) * 9, 9, 3, 64, kv_dtype=KvDtype.INT8),
    "float8": StepCase(((600, 1),) * 9, 9, 3, 64, kv_dtype=KvDtype.FLOAT8),
    "window": StepCase(((600, 1),) * 3, window=300),
}


def with_common_prefix(step: PagedStep, groups: tuple[tuple[tuple[int, ...], int], ...]) -> PagedStep:
    """Rows of each group begin with the first row's slots, as many as told."""
    tables = [row.block_tables[0] for row in step.plan.rows]
    for members, count in groups:
        for member in members:
            tables[member] = tables[members[0]][:count] + tables[member][count:]
    return with_tables(step, tables)


@needs_compiler
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED.keys())
def test_rows_that_begin_with_the_same_blocks_get_what_they_get_alone(
    kernels: Kernels, case: StepCase, num_threads: int
) -> None:
    everyone = tuple(range(len(case.rows)))
    step = with_common_prefix(make_step(case), ((everyone, 290 // case.block_size),))
    assert_written_out(step, kernels(num_threads))


def shares_of(kernels: Kernels, step: PagedStep) -> list[tuple[set[int], int]]:
    """Rows and common tokens of each share that the kernel finds."""
    batch = build_batch(step.plan, step.case.block_size, 1)
    told = kernels(1).step_struct(batch, batch.groups[0], step.case.block_size, step.case.window)
    if not told.num_shares:
        return []
    starts, rows, lengths = (
        np.ctypeslib.as_array(ctypes.cast(getattr(told, name), ctypes.POINTER(ctypes.c_int32)), (size,)).tolist()
        for name, size in (
            ("share_starts", told.num_shares + 1),
            ("share_rows", told.num_rows),
            ("share_lengths", told.num_shares),
        )
    )
    return [(set(rows[low:high]), length) for (low, high), length in zip(pairwise(starts), lengths, strict=True)]


@needs_compiler
def test_shares_are_those_that_save_most_reads(kernels: Kernels) -> None:
    step = make_step(StepCase(((600, 1),) * 6))
    assert shares_of(kernels, step) == []
    whole = with_common_prefix(step, (((0, 1, 2, 3, 4, 5), 8),))
    assert shares_of(kernels, whole) == [({0, 1, 2, 3, 4, 5}, 128)]
    nested = with_common_prefix(step, (((0, 1, 2, 3, 4, 5), 8), ((1, 4, 5), 30), ((0, 3), 36)))
    assert sorted(shares_of(kernels, nested), key=lambda share: share[1]) == [({1, 4, 5}, 480), ({0, 3}, 576)]
    shallow = with_common_prefix(step, (((0, 1, 2, 3, 4, 5), 20), ((2, 5), 24)))
    assert shares_of(kernels, shallow) == [({0, 1, 2, 3, 4, 5}, 320)]
    short = with_common_prefix(step, (((0, 1, 2, 3, 4, 5), 7),))
    assert shares_of(kernels, short) == []


@needs_compiler
def test_new_tokens_are_never_part_of_a_share(kernels: Kernels) -> None:
    step = make_step(StepCase(((160, 1), (159, 1), (144, 16))))
    common = with_common_prefix(step, (((0, 1, 2), 10),))
    assert shares_of(kernels, common) == [({0, 1, 2}, 144)]


FIXED = {
    "plain": StepCase((), 9, 3, 64),
    "one head per key head": StepCase((), 3, 3, 32),
    "many heads on one": StepCase((), 71, 1, 32),
    "wide, values of another width": StepCase((), 4, 2, 192, value_dim=128),
    "window": StepCase((), window=40),
    "all at once": StepCase((), window=100, softcap=3.0, num_sinks=6, block_size=5),
    "int8": StepCase((), 9, 3, 64, kv_dtype=KvDtype.INT8),
    "float8, sinks": StepCase((), num_sinks=6, kv_dtype=KvDtype.FLOAT8),
}


def in_chunks(
    backend: NativeAttention, case: StepCase, chunks: tuple[int, ...], others: tuple[tuple[int, int], ...]
) -> Tensor:
    """Outputs of a sequence of 700 tokens that comes in `chunks`, each in a step with `others` in front of it."""
    length = sum(chunks)
    source = make_step(replace(case, rows=((0, length),)))
    outputs, start = [], 0
    memory = make_step(replace(case, rows=(*others, (0, length))), seed=7)
    table = memory.plan.rows[-1].block_tables[0]
    for new in chunks:
        step = make_step(replace(case, rows=(*others, (0, new))), seed=7)
        row = Row(SequenceId(9), (0,) * new, start, (table[: -(-(start + new) // case.block_size)],), ())
        own = slice(start, start + new)
        before = sum(count for _, count in others)
        parts = {
            name: torch.cat((getattr(step, name)[:, :before], getattr(source, name)[:, own]), 1)
            for name in ("query", "key", "value")
        }
        plan = StepPlan((*memory.plan.rows[:-1], row), (), (), ())
        step = replace(step, pools=memory.pools, plan=plan, sinks=source.sinks, **parts)
        outputs.append(step.run(backend)[before:])
        start += new
    return torch.cat(outputs)


@needs_compiler
@pytest.mark.parametrize("case", FIXED.values(), ids=FIXED.keys())
def test_in_fixed_order_bits_depend_on_nothing_but_the_row(kernels: Kernels, case: StepCase) -> None:
    expected = in_chunks(kernels(1, Order.FIXED), case, (700,), ())
    others = ((5, 1), (300, 1), (530, 2), (17, 50))
    ways = {
        "threads": (5, (700,), ()),
        "chunks": (1, (1, 255, 256, 60, 1, 1, 126), ()),
        "chunks and threads": (2, (300, 100, 299, 1), ()),
        "a batch": (1, (500, 200), others),
        "a batch and threads": (2, (650, 1, 1, 48), others),
        "decoding with many threads": (5, (690, *(1,) * 10), others[:2]),
    }
    for name, (threads, chunks, beside) in ways.items():
        assert torch.equal(in_chunks(kernels(threads, Order.FIXED), case, chunks, beside), expected), name


@needs_compiler
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("num_threads", [1, 5])
def test_fixed_order_equals_attention_written_out(kernels: Kernels, case: StepCase, num_threads: int) -> None:
    assert_written_out(make_step(case), kernels(num_threads, Order.FIXED))
