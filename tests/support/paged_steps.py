"""One call of attention over pools of any kind, with random history in scattered slots, and its result written out.

What is not written holds NaN, or scales of NaN. The oracle reads the pool back: a quantised cache is compared by what
it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cache_store.kv_layout import GroupShape, KvDtype
from worker.model_files.layers import LayerSpec
from worker.step_plan import Row, SequenceId, StepPlan
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.pools import KvPools, LayerPool
from worker.torch_runner.step_batch import build_batch

SCALING = 0.3
LAYER = 1
_NUM_LAYERS = 2
_LIMITS = {KvDtype.INT8: 127.0, KvDtype.FLOAT8: 448.0}


@dataclass(frozen=True)
class StepCase:
    """(history, new tokens) of each row, decoding ones first, and the kind of cache."""

    rows: tuple[tuple[int, int], ...]
    num_query_heads: int = 6
    num_kv_heads: int = 2
    key_dim: int = 16
    value_dim: int = 0
    """0: as wide as keys."""
    window: int = 0
    softcap: float = 0.0
    num_sinks: int = 0
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: KvDtype = KvDtype.FLOAT32

    @property
    def shape(self) -> GroupShape:
        width = self.value_dim or self.key_dim
        return GroupShape(self.window, self.num_kv_heads, self.key_dim, width, tuple(range(_NUM_LAYERS)))

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        width = self.value_dim or self.key_dim
        spec = LayerSpec(
            self.num_query_heads,
            self.num_kv_heads,
            self.key_dim,
            width,
            SCALING,
            self.window,
            self.softcap,
            self.num_sinks,
        )
        return (spec,) * _NUM_LAYERS


@dataclass(frozen=True)
class PagedStep:
    """Inputs of one call."""

    case: StepCase
    pools: KvPools
    plan: StepPlan
    query: Tensor
    key: Tensor
    value: Tensor
    sinks: Tensor | None

    @property
    def pool(self) -> LayerPool:
        return self.pools.groups[0].layer(LAYER)

    def run(self, backend: AttentionBackend) -> Tensor:
        case = self.case
        step = backend.begin(self.pools, build_batch(self.plan, case.block_size, 1))
        return step.attend(
            LAYER, self.query, self.key, self.value, SCALING, case.window, case.softcap, self.sinks
        ).float()


def make_step(case: StepCase, device: str = "cpu", seed: int = 5) -> PagedStep:
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(history + new) // case.block_size) for history, new in case.rows]
    num_slots = sum(counts) + 3
    pools = KvPools((case.shape,), (num_slots,), case.block_size, case.kv_dtype, torch.device(device), math.nan)
    slots = torch.randperm(num_slots, generator=generator).tolist()
    pool = pools.groups[0].layer(LAYER)
    rows = []
    for index, ((history, new), count) in enumerate(zip(case.rows, counts, strict=True)):
        table, slots = tuple(slots[:count]), slots[count:]
        width = case.key_dim + case.shape.value_dim
        past = torch.randn(history, case.num_kv_heads, width, generator=generator).to(case.dtype)
        places = torch.arange(history)
        where = (torch.tensor(table)[places // case.block_size], places % case.block_size)
        store(pool, past[..., : case.key_dim], past[..., case.key_dim :], (where[0].to(device), where[1].to(device)))
        rows.append(Row(SequenceId(index), (0,) * new, history, (table,), ()))
    num_tokens = sum(new for _, new in case.rows)

    def fresh(num_heads: int, width: int) -> Tensor:
        return torch.randn(num_tokens, num_heads, width, generator=generator).to(device, case.dtype).transpose(0, 1)

    return PagedStep(
        case=case,
        pools=pools,
        plan=StepPlan(tuple(rows), (), (), ()),
        query=fresh(case.num_query_heads, case.key_dim),
        key=fresh(case.num_kv_heads, case.key_dim),
        value=fresh(case.num_kv_heads, case.shape.value_dim),
        sinks=torch.randn(case.num_sinks, generator=generator).to(device, case.dtype) if case.num_sinks else None,
    )


def store(pool: LayerPool, key: Tensor, value: Tensor, where: tuple[Tensor, Tensor]) -> None:
    """Writes key and value [tokens, kv_heads, width] to (slots, offsets), quantised as the pool is."""
    for elements, scales, vectors in ((pool.keys, pool.key_scales, key), (pool.values, pool.value_scales, value)):
        vectors = vectors.to(elements.device)
        if scales is None:
            elements.index_put_(where, vectors.to(elements.dtype))
        else:
            stored, scale = quantised(vectors, KvDtype.INT8 if elements.dtype == torch.int8 else KvDtype.FLOAT8)
            elements.view(torch.uint8).index_put_(where, stored.view(torch.uint8))
            scales.index_put_(where, scale)


def quantised(vectors: Tensor, kv_dtype: KvDtype) -> tuple[Tensor, Tensor]:
    """Elements and scales [tokens, kv_heads] of vectors [tokens, kv_heads, width]."""
    exact = vectors.float()
    scale = exact.abs().amax(-1) / _LIMITS[kv_dtype]
    scaled = exact / torch.where(scale > 0, scale, 1.0).unsqueeze(-1)
    return (scaled.round().to(torch.int8) if kv_dtype is KvDtype.INT8 else scaled.to(torch.float8_e4m3fn)), scale


def written_out(step: PagedStep) -> Tensor:
    """[tokens, query_heads, value_dim], with explicit masks and copied heads, in double precision; after `run`."""
    case, outputs, token = step.case, [], 0
    for (history, new), row in zip(case.rows, step.plan.rows, strict=True):
        length = history + new
        keys, values = (
            _sequence(elements, scales, row.block_tables[0], length).repeat_interleave(
                case.num_query_heads // case.num_kv_heads, 1
            )
            for elements, scales in (
                (step.pool.keys, step.pool.key_scales),
                (step.pool.values, step.pool.value_scales),
            )
        )
        query = step.query[:, token : token + new].double()
        scores = torch.einsum("hqd,khd->hqk", query, keys) * SCALING
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        positions = torch.arange(history, length, device=query.device).unsqueeze(1)
        places = torch.arange(length, device=query.device).unsqueeze(0)
        hidden = places > positions
        if case.window:
            hidden |= places <= positions - case.window
        scores = scores.masked_fill(hidden, -math.inf)
        if step.sinks is not None:
            scores = torch.cat((scores, step.sinks.double().view(-1, 1, 1).expand(-1, new, 1)), 2)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(2)[:, :, :length], values))
        token += new
    return torch.cat(outputs).float()


def _sequence(elements: Tensor, scales: Tensor | None, table: tuple[int, ...], length: int) -> Tensor:
    """[tokens, kv_heads, width] of a row, without scales."""
    index = torch.tensor(table, device=elements.device)
    if elements.element_size() == 1:
        vectors = elements.view(torch.uint8)[index].view(elements.dtype).double()
    else:
        vectors = elements[index].double()
    if scales is not None:
        vectors = vectors * scales[index].double().unsqueeze(-1)
    return vectors.flatten(0, 1)[:length]
