"""Paged attention by the Triton kernels: on NVIDIA GPUs, and interpreted on a CPU for tests.

Rows of one new token come first in a batch and are decoded: their keys are split into ranges of fixed positions, which
run side by side. Rows of many tokens have tiles of tokens instead. With `Order.FIXED` all rows are computed by the same
kernel with the same tiles and ranges, so that the bits of a token's result depend on its own sequence alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from cache_store.kv_layout import GroupShape
from worker.model_files.layers import LayerSpec
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.latent_projection import LatentProjection
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import StepBatch
from worker.torch_runner.step_upload import upload
from worker.torch_runner.triton_latent import TritonLatentStep
from worker.torch_runner.triton_launch import Kernels, Scores
from worker.torch_runner.triton_work import (
    GroupTiling,
    GroupWork,
    StepWork,
    device_work,
    group_tiling,
    group_work,
    latent_prefills,
)
from worker.torch_runner.work_items import Words, Work


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
        latents: Mapping[int, LatentProjection] | None = None,
    ) -> None:
        """`element_bytes` of queries; `split`: positions per range of keys, None: as many as suit the layers.

        `latents` of a model whose layers all cache latents.
        """
        self.kernels = Kernels(device)
        self.order = order
        self.tilings = tuple(group_tiling(shape, layers, element_bytes, order, split) for shape in groups)
        self._latents = latents

    @property
    def name(self) -> str:
        return "triton"

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return self.step(pools, self._upload(pools, batch))

    def step(self, pools: KvPools, work: StepWork) -> LayerAttention:
        """Attention of a forward over `work`, which lies on the device."""
        if self._latents:
            return TritonLatentStep(self.kernels, self.tilings, self._latents, pools, work)
        return TritonStep(self.kernels, self.tilings, pools, work)

    def num_decoded(self, batch: StepBatch) -> int:
        """Leading rows whose keys are split."""
        return len(batch.lengths) if self.order is Order.FIXED else batch.num_decode_rows

    def make_works(self, pools: KvPools, batch: StepBatch) -> list[tuple[Work | None, Work | None]]:
        """Per cache group: what is decoded, and what is prefilled."""
        bounds = (0, self.num_decoded(batch), len(batch.lengths))
        works = []
        for group, pool, tiling in zip(batch.groups, pools.groups, self.tilings, strict=True):
            window, heads = pool.shape.window, tiling.heads_per_key
            decode = group_work(batch, group, *bounds[:2], window, tiling.tokens, tiling.split)
            prefill = group_work(batch, group, *bounds[1:], window, tiling.prefill.tokens(heads), 0)
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
            groups.append(GroupWork(tables, slots, *(device_work(work, tensors) for work in pair)))
        prefilled = latent_prefills(batch, self.num_decoded(batch)) if self._latents else ()
        return StepWork(offsets, tuple(groups), prefilled)


class TritonStep:
    """Attention of one forward over work that lies on the device."""

    def __init__(self, kernels: Kernels, tilings: tuple[GroupTiling, ...], pools: KvPools, work: StepWork) -> None:
        self._kernels = kernels
        self._tilings = tilings
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
        pool, group, tiling = self._pools.layer(layer), self._work.groups[index], self._tilings[index]
        kernels = self._kernels
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
