"""Paged attention by the Triton kernels: on NVIDIA GPUs, and interpreted on a CPU for tests.

Rows of one new token come first in a batch and are decoded: their keys are split into ranges of fixed positions, which
run side by side. Rows of many tokens have tiles of tokens instead. With `Order.FIXED` all rows are computed by the same
kernel with the same tiles and ranges, so that the bits of a token's result depend on its own sequence alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cache_store.errors import PreconditionError
from cache_store.kv_layout import GroupShape
from worker.model_files.layers import LayerSpec
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import GroupBatch, StepBatch
from worker.torch_runner.step_upload import upload
from worker.torch_runner.triton_launch import DeviceWork, Kernels, Scores
from worker.torch_runner.triton_tiling import (
    FIXED_SPLIT,
    Tiling,
    decode_tiling,
    fixed_tiling,
    prefill_tiling,
    split_of,
)
from worker.torch_runner.work_items import Rows, Words, Work, make_work


@dataclass(frozen=True, slots=True)
class GroupTiling:
    """How the layers of one cache group are computed."""

    heads_per_key: int
    decode: Tiling
    prefill: Tiling
    split: int
    """Positions per range of keys."""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """What a step asks of the layers of one cache group, on the device."""

    tables: Tensor
    slots: Tensor
    """[tokens]: where each new token is written to; below 0: nowhere."""
    decode: DeviceWork | None
    """Of the leading rows."""
    prefill: DeviceWork | None


class TritonAttention:
    """The back end of GPUs. Raises PreconditionError on any other device, unless kernels are interpreted."""

    def __init__(
        self,
        layers: tuple[LayerSpec, ...],
        groups: tuple[GroupShape, ...],
        device: torch.device,
        element_bytes: int,
        order: Order = Order.FREE,
        split: int | None = None,
    ) -> None:
        """`element_bytes` of queries; `split`: positions per range of keys, None: as many as suit the layers."""
        self.kernels = Kernels(device)
        self.order = order
        self.tilings = tuple(_group_tiling(shape, layers, element_bytes, order, split) for shape in groups)

    @property
    def name(self) -> str:
        return "triton"

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return TritonStep(self, pools, self._upload(pools, batch))

    def make_works(self, pools: KvPools, batch: StepBatch) -> list[tuple[Work | None, Work | None]]:
        """Per cache group: what is decoded, and what is prefilled."""
        num_rows = len(batch.lengths)
        bounds = (0, num_rows, num_rows) if self.order is Order.FIXED else (0, batch.num_decode_rows, num_rows)
        works = []
        for group, pool, tiling in zip(batch.groups, pools.groups, self.tilings, strict=True):
            window, heads = pool.shape.window, tiling.heads_per_key
            decode = _work(batch, group, *bounds[:2], window, tiling.decode.tokens(heads), tiling.split)
            prefill = _work(batch, group, *bounds[1:], window, tiling.prefill.tokens(heads), 0)
            works.append((decode, prefill))
        return works

    def _upload(self, pools: KvPools, batch: StepBatch) -> StepWork:
        works = self.make_works(pools, batch)
        arrays: list[Words] = [batch.token_offsets.astype(np.int32)]
        for group, pair in zip(batch.groups, works, strict=True):
            arrays += [group.tables, group.token_blocks.astype(np.int32)]
            for work in pair:
                if work is not None:
                    arrays += [work.items, np.array([len(work.items)], np.int32), work.parts]
        tensors = iter(upload(arrays, pools.device))
        offsets = next(tensors)
        groups = []
        for pair in works:
            tables, slots = next(tensors), next(tensors)
            groups.append(GroupWork(tables, slots, *(_device_work(work, tensors) for work in pair)))
        return StepWork(offsets, tuple(groups))


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step asks, on the device."""

    offsets: Tensor
    """[tokens]: place of each new token inside its block."""
    groups: tuple[GroupWork, ...]


class TritonStep:
    """Attention of one forward over work that lies on the device."""

    def __init__(self, backend: TritonAttention, pools: KvPools, work: StepWork) -> None:
        self._backend = backend
        self._pools = pools
        self._work = work

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        index, _ = self._pools.place(layer)
        pool, group, tiling = self._pools.layer(layer), self._work.groups[index], self._backend.tilings[index]
        kernels = self._backend.kernels
        query, key, value = (
            tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (query, key, value)
        )
        kernels.write(key, value, pool, group.slots, self._work.offsets)
        scores = Scores(scaling, window, softcap, sinks)
        out = kernels.output(query, value.shape[2])
        if group.decode is not None:
            kernels.attend(query, pool, group.tables, group.decode, tiling.decode, scores, out)
        if group.prefill is not None:
            kernels.attend(query, pool, group.tables, group.prefill, tiling.prefill, scores, out)
        return out.to(query.dtype)


def _group_tiling(
    shape: GroupShape, layers: tuple[LayerSpec, ...], element_bytes: int, order: Order, split: int | None
) -> GroupTiling:
    ratios = {layers[index].num_query_heads // shape.num_kv_heads for index in shape.layers}
    if len(ratios) != 1:
        raise PreconditionError(
            f"layers that share a pool have {sorted(ratios)} query heads for each key head; the Triton kernels take one"
        )
    heads = ratios.pop()
    if order is Order.FIXED:
        tiling = fixed_tiling(shape.key_dim, element_bytes)
        return GroupTiling(heads, tiling, tiling, split or FIXED_SPLIT)
    decode = decode_tiling(heads, shape.key_dim, element_bytes)
    return GroupTiling(heads, decode, prefill_tiling(shape.key_dim, element_bytes), split or split_of(heads))


def _work(
    batch: StepBatch, group: GroupBatch, first: int, end: int, window: int, tile_tokens: int, split: int
) -> Work | None:
    """Of rows `first` to `end` - 1; None where there are none."""
    if first == end:
        return None
    starts = batch.row_starts[first : end + 1]
    counts = np.diff(starts)
    rows = Rows(group.table_starts[first:end], starts[:-1], counts, batch.lengths[first:end] - counts)
    return make_work(rows, window, tile_tokens, split)


def _device_work(work: Work | None, tensors: Iterator[Tensor]) -> DeviceWork | None:
    if work is None:
        return None
    items, num_items, parts = next(tensors), next(tensors), next(tensors)
    return DeviceWork(items, num_items, parts, work.num_parts, len(work.items))
