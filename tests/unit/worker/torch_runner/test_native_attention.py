"""The C++ kernel, and the fallback without it, against attention written out token by token in double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cache_store.kv_layout import GroupShape, KvDtype
from tests.support.compilers import compiler, needs_compiler
from worker.model_files.layers import LayerSpec
from worker.step_plan import Row, SequenceId, StepPlan
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.native_attention import NativeAttention
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import build_batch

NUM_LAYERS = 2
LAYER = 1


@dataclass(frozen=True)
class Case:
    """One step: (history, new tokens) of each row."""

    rows: tuple[tuple[int, int], ...]
    num_query_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    window: int = 0
    softcap: float = 0.0
    with_sinks: str = "no"
    block_size: int = 16


CASES = {
    "decode at block edges": Case(((1, 1), (14, 1), (15, 1), (16, 1), (31, 1), (32, 1), (300, 1))),
    "first token": Case(((0, 1),)),
    "prefill": Case(((0, 77), (0, 1), (0, 16), (0, 17))),
    "chunk with history": Case(((40, 1), (33, 50), (16, 3), (1, 2), (700, 40))),
    "one head per key head": Case(((50, 1), (50, 3), (50, 40)), num_query_heads=3, num_kv_heads=3),
    "nine heads on three": Case(((50, 1), (50, 3), (50, 40)), num_query_heads=9, num_kv_heads=3, head_dim=64),
    "many heads on one": Case(((50, 1), (50, 3), (50, 40)), num_query_heads=71, num_kv_heads=1, head_dim=64),
    "width 32": Case(((70, 1), (70, 30)), head_dim=32),
    "width 80": Case(((70, 1), (70, 30)), head_dim=80),
    "width 96": Case(((70, 1), (70, 30)), head_dim=96),
    "width 128": Case(((70, 1), (70, 30)), head_dim=128),
    "width 256": Case(((70, 1), (70, 30)), head_dim=256),
    "window": Case(((5, 1), (23, 1), (24, 1), (100, 1), (100, 40), (0, 90)), window=24),
    "window of one": Case(((30, 1), (30, 9)), window=1),
    "softcap": Case(((70, 1), (70, 30)), softcap=3.0),
    "sinks": Case(((70, 1), (70, 30)), with_sinks="yes"),
    "all at once": Case(((70, 1), (70, 30)), window=24, softcap=3.0, with_sinks="yes"),
    "block of 8": Case(((70, 1), (7, 30)), block_size=8),
    "block of 5": Case(((70, 1), (7, 30)), block_size=5),
    "long": Case(((2100, 1), (1500, 33))),
}


@dataclass(frozen=True)
class Step:
    """Inputs of one call, and pools that hold the history; everything else in them is NaN."""

    pools: KvPools
    plan: StepPlan
    query: Tensor
    key: Tensor
    value: Tensor
    sinks: Tensor | None
    sequences: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values of each row's whole sequence, [tokens, kv_heads, head_dim]."""


def make_step(case: Case) -> Step:
    torch.manual_seed(5)
    shape = GroupShape(case.window, case.num_kv_heads, case.head_dim, case.head_dim, tuple(range(NUM_LAYERS)))
    counts = [-(-(history + new) // case.block_size) for history, new in case.rows]
    pools = KvPools((shape,), (sum(counts) + 3,), case.block_size, KvDtype.FLOAT32, torch.device("cpu"), math.nan)
    slots = torch.randperm(sum(counts) + 3).tolist()
    rows, sequences = [], []
    pool = pools.groups[0].layer(LAYER)
    for index, ((history, new), count) in enumerate(zip(case.rows, counts, strict=True)):
        table, slots = tuple(slots[:count]), slots[count:]
        sequence = torch.randn(2, history + new, case.num_kv_heads, case.head_dim)
        for position in range(history):
            place = (table[position // case.block_size], position % case.block_size)
            pool.keys[place], pool.values[place] = sequence[0, position], sequence[1, position]
        rows.append(Row(SequenceId(index), (0,) * new, history, (table,), ()))
        sequences.append((sequence[0], sequence[1]))
    num_tokens = sum(new for _, new in case.rows)
    fresh = [
        torch.cat([part[which][-new:] for part, (_, new) in zip(sequences, case.rows, strict=True)]) for which in (0, 1)
    ]
    return Step(
        pools=pools,
        plan=StepPlan(tuple(rows), (), (), ()),
        query=torch.randn(num_tokens, case.num_query_heads, case.head_dim).transpose(0, 1),
        key=fresh[0].transpose(0, 1),
        value=fresh[1].transpose(0, 1),
        sinks=torch.randn(case.num_query_heads) if case.with_sinks == "yes" else None,
        sequences=tuple(sequences),
    )


def written_out(case: Case, step: Step) -> Tensor:
    """[tokens, query_heads, head_dim], with explicit masks and copied heads, in double precision."""
    group = case.num_query_heads // case.num_kv_heads
    outputs = []
    token = 0
    for (history, new), sequence in zip(case.rows, step.sequences, strict=True):
        keys, values = (part.double().repeat_interleave(group, 1) for part in sequence)
        query = step.query[:, token : token + new].double()
        scores = torch.einsum("hqd,khd->hqk", query, keys) * SCALING
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        positions, places = torch.arange(history, history + new).unsqueeze(1), torch.arange(history + new).unsqueeze(0)
        hidden = places > positions
        if case.window:
            hidden |= places <= positions - case.window
        scores = scores.masked_fill(hidden, -math.inf)
        if step.sinks is not None:
            column = step.sinks.double().view(-1, 1, 1).expand(-1, new, 1)
            scores = torch.cat((scores, column), 2)
        weights = scores.softmax(2)[:, :, : history + new]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
        token += new
    return torch.cat(outputs).float()


SCALING = 0.3


def run(backend: AttentionBackend, case: Case, step: Step) -> Tensor:
    attention = backend.begin(step.pools, build_batch(step.plan, case.block_size, 1))
    return attention.attend(LAYER, step.query, step.key, step.value, SCALING, case.window, case.softcap, step.sinks)


@needs_compiler
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("num_threads", [1, 2])
def test_kernel_equals_attention_written_out(
    tmp_path_factory: pytest.TempPathFactory, case: Case, num_threads: int
) -> None:
    kernel = NativeAttention(compiler(), tmp_path_factory.getbasetemp() / "kernels", num_threads)
    assert kernel.supports(
        LayerSpec(case.num_query_heads, case.num_kv_heads, case.head_dim, case.head_dim, SCALING, 0, 0.0, 0)
    )
    step = make_step(case)
    assert torch.allclose(run(kernel, case, step), written_out(case, step), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_fallback_equals_attention_written_out(case: Case) -> None:
    step = make_step(case)
    assert torch.allclose(run(GatherAttention(), case, step), written_out(case, step), atol=2e-5, rtol=1e-4)


@needs_compiler
def test_new_tokens_are_written_to_their_slots_of_their_layer_only(tmp_path: Path) -> None:
    case = CASES["chunk with history"]
    for backend in (NativeAttention(compiler(), tmp_path, 1), GatherAttention()):
        step = make_step(case)
        run(backend, case, step)
        written = step.pools.groups[0].layer(LAYER)
        for row, (sequence_keys, sequence_values) in zip(step.plan.rows, step.sequences, strict=True):
            table = torch.tensor(row.block_tables[0])
            for pool, expected in ((written.keys, sequence_keys), (written.values, sequence_values)):
                assert torch.equal(pool[table].flatten(0, 1)[: row.kv_length], expected)
        num_written = sum(row.kv_length for row in step.plan.rows)
        finite = step.pools.groups[0].bytes.view(torch.float32).isfinite().sum()
        assert finite == 2 * num_written * case.num_kv_heads * case.head_dim
