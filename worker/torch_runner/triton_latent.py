"""Attention over cached latents by Triton: decoding in the space of the latents, prompts as on any device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from worker.torch_runner.latent_attention import LatentCall, attend_to_latents
from worker.torch_runner.latent_projection import LatentProjection
from worker.torch_runner.pools import KvPools, LayerPool
from worker.torch_runner.triton_launch import Kernels
from worker.torch_runner.triton_work import GroupTiling, StepWork


class TritonLatentStep:
    """Attention of one step; also the store of its latents."""

    def __init__(
        self,
        kernels: Kernels,
        tilings: tuple[GroupTiling, ...],
        latents: Mapping[int, LatentProjection],
        pools: KvPools,
        work: StepWork,
    ) -> None:
        self._kernels = kernels
        self._tilings = tilings
        self._latents = latents
        self._pools = pools
        self._work = work

    def store_latents(self, layer: int, latents: Tensor) -> None:
        index, _ = self._pools.place(layer)
        vectors = latents.unsqueeze(0)
        slots = self._work.groups[index].slots
        self._kernels.write(vectors, vectors, self._pools.layer(layer), slots, self._work.offsets)

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
        assert (window, softcap, sinks) == (0, 0.0, None), "no model with latents has them"
        index, _ = self._pools.place(layer)
        pool, group, projection = self._pools.layer(layer), self._work.groups[index], self._latents[layer]
        outputs = []
        num_decoded = 0
        if group.decode is not None:
            num_decoded = group.decode.parts.shape[1]
            tiling = self._tilings[index].decode
            absorbed = projection.absorb(query[:, :num_decoded])
            read = self._kernels.output(absorbed, projection.rank)
            self._kernels.attend_latent(absorbed, pool, group.tables, group.decode, tiling, scaling, read)
            outputs.append(projection.release(read.to(query.dtype).transpose(0, 1)).transpose(0, 1))
        if self._work.prefilled:
            call = LatentCall(projection, query, key, value, scaling, window, softcap, sinks)
            prefills = self._work.prefilled

            def latents_of(row: int) -> Tensor:
                table = group.tables[prefills[row].table]
                return _gathered(pool, table, prefills[row].row.length, query.dtype)

            read = attend_to_latents(call, [prefill.row for prefill in prefills], latents_of)
            outputs.append(read[num_decoded:])
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0].contiguous()


def _gathered(pool: LayerPool, table: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Latents [length, width] of one row."""
    latents = pool.keys.index_select(0, table)
    if pool.key_scales is not None:
        latents = latents.float() * pool.key_scales.index_select(0, table).unsqueeze(-1)
    return latents.to(dtype).view(-1, latents.shape[-1])[:length]
