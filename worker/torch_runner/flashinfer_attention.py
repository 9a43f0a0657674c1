"""Attention by the package FlashInfer, for 16-bit models on GPUs. Written after release 0.7.2; no GPU has run it yet.

One plan per step and cache group, made by the package for all rows, decoding ones among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from worker.model_files.layers import LayerSpec
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.pools import GroupPool, KvPools
from worker.torch_runner.step_batch import GroupBatch, StepBatch
from worker.torch_runner.step_upload import upload
from worker.torch_runner.work_items import Words

_WORKSPACE_BYTES = 128 << 20
"""What the package's examples take; one for each cache group."""


class Wrapper(Protocol):
    """As flashinfer.BatchPrefillWithPagedKVCacheWrapper."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        """Prepares the calls of `run` of one step."""
        ...

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        """q [tokens, query heads, width]; keys and values [pages, page_size, key heads, width]."""
        ...


Planned = tuple[float, int, float]
"""Scaling, window and softcap of a group's layers."""
MakeWrapper = Callable[[torch.device], Wrapper]


class FlashInferAttention:
    """A back end. Belongs to one runner."""

    def __init__(self, layers: tuple[LayerSpec, ...], dtype: torch.dtype, make_wrapper: MakeWrapper) -> None:
        self._layers = layers
        self._dtype = dtype
        self._make_wrapper = make_wrapper
        self._wrappers: list[Wrapper] = []

    @property
    def name(self) -> str:
        return "flashinfer"

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        while len(self._wrappers) < len(pools.groups):
            self._wrappers.append(self._make_wrapper(pools.device))
        arrays = [batch.token_offsets.astype(np.int32)]
        for group in batch.groups:
            arrays.append(group.token_blocks.astype(np.int32))
        offsets, *slots = upload(arrays, pools.device)
        for wrapper, pool, group in zip(self._wrappers, pools.groups, batch.groups, strict=True):
            self._plan(wrapper, pool, group, batch, pools)
        specs = [self._layers[pool.shape.layers[0]] for pool in pools.groups]
        planned = [(spec.scaling, spec.window, spec.softcap) for spec in specs]
        return _FlashInferStep(self._wrappers, planned, pools, slots, offsets)

    def _plan(self, wrapper: Wrapper, pool: GroupPool, group: GroupBatch, batch: StepBatch, pools: KvPools) -> None:
        spec, shape = self._layers[pool.shape.layers[0]], pool.shape
        pages, indices = _pages(batch, group, pools.block_size)
        wrapper.plan(
            torch.from_numpy(batch.row_starts),
            torch.from_numpy(pages),
            upload([indices], pools.device)[0],
            torch.from_numpy(((batch.lengths - 1) % pools.block_size + 1).astype(np.int32)),
            spec.num_query_heads,
            shape.num_kv_heads,
            shape.key_dim,
            pools.block_size,
            causal=True,
            sm_scale=spec.scaling,
            window_left=shape.window - 1 if shape.window else -1,
            logits_soft_cap=spec.softcap,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )


class _FlashInferStep:
    def __init__(
        self, wrappers: list[Wrapper], planned: list[Planned], pools: KvPools, slots: list[Tensor], offsets: Tensor
    ) -> None:
        self._wrappers = wrappers
        self._planned = planned
        self._pools = pools
        self._slots = slots
        self._offsets = offsets

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
        assert sinks is None, "refused at the choice"
        index, _ = self._pools.place(layer)
        assert (scaling, window, softcap) == self._planned[index], "layers of a group differ"
        pool = self._pools.layer(layer)
        for elements, vectors in ((pool.keys, key), (pool.values, value)):
            elements.index_put_((self._slots[index], self._offsets), vectors.transpose(0, 1))
        return self._wrappers[index].run(query.transpose(0, 1).contiguous(), (pool.keys, pool.values)).contiguous()


def _pages(batch: StepBatch, group: GroupBatch, block_size: int) -> tuple[Words, Words]:
    """Where each row's pages begin, and all pages: as many as a row's tokens fill.

    Slots that a window has let go read as slot 0: what lies there is hidden by the window.
    """
    counts = -(-batch.lengths // block_size)
    tables = [group.tables[start : start + count] for start, count in zip(group.table_starts[:-1], counts, strict=True)]
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return ends, np.maximum(np.concatenate(tables), 0).astype(np.int32)


def package_wrapper(device: torch.device) -> Wrapper:
    """One of the package that is installed."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # only where it was asked for

    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    wrapper: Wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    return wrapper
