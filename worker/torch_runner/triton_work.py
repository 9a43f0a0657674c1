"""What a step asks of the Triton kernels: tiles, lists of work, and where they lie on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cache_store.errors import PreconditionError
from cache_store.kv_layout import GroupShape
from worker.model_files.layers import LayerSpec
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.latent_attention import LatentRow
from worker.torch_runner.step_batch import GroupBatch, StepBatch
from worker.torch_runner.triton_launch import DeviceWork
from worker.torch_runner.triton_tiling import (
    FIXED_SPLIT,
    Tiling,
    decode_tiling,
    fixed_tiling,
    latent_tiling,
    prefill_tiling,
    split_of,
)
from worker.torch_runner.work_items import Rows, Work, make_work


@dataclass(frozen=True, slots=True)
class GroupTiling:
    """How the layers of one cache group are computed."""

    heads_per_key: int
    decode: Tiling
    prefill: Tiling
    split: int
    """Positions per range of keys."""
    tokens: int
    """Per item of what is decoded."""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """What a step asks of the layers of one cache group, on the device."""

    tables: Tensor
    slots: Tensor
    """[tokens]: where each new token is written to; below 0: nowhere."""
    decode: DeviceWork | None
    """Of the leading rows."""
    prefill: DeviceWork | None


@dataclass(frozen=True, slots=True)
class LatentPrefill:
    """A row whose new tokens are many."""

    row: LatentRow
    table: slice
    """Its part of the block tables."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step asks, on the device."""

    offsets: Tensor
    """[tokens]: place of each new token inside its block."""
    groups: tuple[GroupWork, ...]
    prefilled: tuple[LatentPrefill, ...]
    """Rows that are not decoded, for layers that cache latents."""


def group_tiling(
    shape: GroupShape, layers: tuple[LayerSpec, ...], element_bytes: int, order: Order, split: int | None
) -> GroupTiling:
    ratios = {layers[index].num_query_heads // shape.num_kv_heads for index in shape.layers}
    if len(ratios) != 1:
        raise PreconditionError(
            f"layers that share a pool have {sorted(ratios)} query heads for each key head; the Triton kernels take one"
        )
    heads = ratios.pop()
    if not shape.value_dim:
        tiling = latent_tiling(element_bytes)
        return GroupTiling(
            heads, tiling, tiling, split or (FIXED_SPLIT if order is Order.FIXED else split_of(heads)), 1
        )
    if order is Order.FIXED:
        tiling = fixed_tiling(shape.key_dim, element_bytes)
        return GroupTiling(heads, tiling, tiling, split or FIXED_SPLIT, tiling.tokens(heads))
    decode, prefill = decode_tiling(heads, shape.key_dim, element_bytes), prefill_tiling(shape.key_dim, element_bytes)
    return GroupTiling(heads, decode, prefill, split or split_of(heads), decode.tokens(heads))


def latent_prefills(batch: StepBatch, first: int) -> tuple[LatentPrefill, ...]:
    """Rows from `first` on of a model that has one cache group."""
    starts, lengths, tables = batch.row_starts.tolist(), batch.lengths.tolist(), batch.groups[0].table_starts.tolist()
    return tuple(
        LatentPrefill(LatentRow(starts[row], starts[row + 1], lengths[row]), slice(tables[row], tables[row + 1]))
        for row in range(first, len(lengths))
    )


def group_work(
    batch: StepBatch, group: GroupBatch, first: int, end: int, window: int, tile_tokens: int, split: int
) -> Work | None:
    """Of rows `first` to `end` - 1; None where there are none."""
    if first == end:
        return None
    starts = batch.row_starts[first : end + 1]
    counts = np.diff(starts)
    rows = Rows(group.table_starts[first:end], starts[:-1], counts, batch.lengths[first:end] - counts)
    return make_work(rows, window, tile_tokens, split)


def device_work(work: Work | None, tensors: Iterator[Tensor]) -> DeviceWork | None:
    if work is None:
        return None
    items, num_items, parts = next(tensors), next(tensors), next(tensors)
    return DeviceWork(items, num_items, parts, work.num_parts, len(work.items))
