"""Attention that notes how a model's layers call it, over keys and values that it keeps itself.

Used by the probe at load, for a few tokens of a few sequences. Plain torch; knows no pools.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from worker.model_files.layers import LayerSpec
from worker.torch_runner.dense_attention import dense_attention
from worker.torch_runner.latent_attention import LatentCall, LatentRow, attend_to_latents
from worker.torch_runner.latent_projection import LatentProjection


class RecordingAttention:
    """Dense causal attention of independent sequences that notes how each layer calls it."""

    def __init__(self, counts: tuple[int, ...] = ()) -> None:
        """Of a first forward over so many tokens of each sequence; `begin` tells of more."""
        self.calls: list[dict[int, list[LayerSpec]]] = [{}] if counts else []
        """Of each forward."""
        self._counts = counts
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def begin(self, counts: tuple[int, ...]) -> None:
        """A forward over so many new tokens of each sequence."""
        self._counts = counts
        self.calls.append({})

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
        self.note(layer, query, key, value, scaling, window, softcap, sinks, 0)
        parts = zip(*(torch.split(tensor, list(self._counts), dim=1) for tensor in (query, key, value)), strict=True)
        outputs = []
        for sequence, (new_query, new_key, new_value) in enumerate(parts):
            keys, values = new_key, new_value
            if (layer, sequence) in self._kept:
                older_keys, older_values = self._kept[layer, sequence]
                keys, values = torch.cat((older_keys, keys), dim=1), torch.cat((older_values, values), dim=1)
            self._kept[layer, sequence] = keys.clone(), values.clone()  # they may lie in buffers that are used again
            outputs.append(dense_attention(new_query, keys, values, scaling, window, softcap, sinks))
        return torch.cat(outputs)

    def note(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
        latent_dim: int,
    ) -> None:
        """Keeps how a layer calls its attention."""
        if key.shape[:2] != value.shape[:2] or key.shape[1] != sum(self._counts) or query.shape[2] != key.shape[2]:
            raise NotImplementedError("its queries, keys and values differ in width or number")
        num_sinks = 0 if sinks is None else sinks.shape[0]
        self.calls[-1].setdefault(layer, []).append(
            LayerSpec(
                query.shape[0],
                key.shape[0],
                key.shape[2],
                value.shape[2],
                scaling,
                window,
                softcap,
                num_sinks,
                latent_dim,
            )
        )


class RecordingLatents:
    """The same for layers that cache latents."""

    def __init__(self, projections: Mapping[int, LatentProjection], recorder: RecordingAttention) -> None:
        self._projections = projections
        self._recorder = recorder
        self._counts: tuple[int, ...] = ()
        self._kept: dict[tuple[int, int], Tensor] = {}

    def begin(self, counts: tuple[int, ...]) -> None:
        """A forward over so many new tokens of each sequence."""
        self._counts = counts
        self._recorder.begin(counts)

    def store_latents(self, layer: int, latents: Tensor) -> None:
        for sequence, part in enumerate(torch.split(latents, list(self._counts))):
            older = self._kept.get((layer, sequence), part[:0])
            self._kept[layer, sequence] = torch.cat((older, part))

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
        kept = [self._kept[layer, sequence] for sequence in range(len(self._counts))]
        self._recorder.note(layer, query, key, value, scaling, window, softcap, sinks, kept[0].shape[1])
        rows, low = [], 0
        for count, latents in zip(self._counts, kept, strict=True):
            rows.append(LatentRow(low, low + count, latents.shape[0]))
            low += count
        call = LatentCall(self._projections[layer], query, key, value, scaling, window, softcap, sinks)
        return attend_to_latents(call, rows, kept.__getitem__)
