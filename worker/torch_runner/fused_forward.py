"""The forward of llama-like models by our own kernels: one call with an attention that threads can call, else one call
between two layers' attention.

fp32 on a CPU. Chosen by the structure of the modules and checked at load against the model's own logits. Its buffers
grow to the largest step, so it belongs to one thread. As many threads compute as torch is set to use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from worker.model_files.layers import LayerSpec
from worker.torch_runner.fused_library import (
    AttentionStruct,
    FusedLibrary,
    LayerStruct,
    ModelStruct,
    StepStruct,
    address,
    layer_struct,
)
from worker.torch_runner.fused_weights import FusedWeights, UnfitError
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.rotary_table import RotaryTable
from worker.torch_runner.step_batch import Ints

_OWN_ROWS = 8
"""Rows of normed values that every thread has for itself, as in fused_forward.cpp."""


@runtime_checkable
class TeamAttention(Protocol):
    """Attention of one step that the threads of a forward call themselves."""

    def team_calls(
        self, layers: Sequence[LayerSpec], query: Tensor, key: Tensor, value: Tensor, out: Tensor
    ) -> AttentionStruct:
        """The calls of all layers, which read the first three and write `out`; valid while the step is.

        Shapes as in `LayerAttention.attend`; `out` may have more tokens than the step.
        """
        ...


class FusedForward:
    """Computes one model."""

    def __init__(self, library: FusedLibrary, weights: FusedWeights, layers: Sequence[LayerSpec]) -> None:
        """Raises UnfitError where heads are too wide."""
        spec = layers[0]
        if spec.head_dim > library.max_head_dim:
            raise UnfitError(f"its heads are {spec.head_dim} wide, more than {library.max_head_dim}")
        self._library = library
        self._weights = weights
        self._specs = tuple(layers)
        self._rotary = RotaryTable(weights.rotary)
        self._layers = (LayerStruct * len(weights.layers))(*(layer_struct(layer) for layer in weights.layers))
        vocabulary, hidden = weights.head.weight.shape
        self._model = ModelStruct(
            self._layers,
            *(address(each) for each in (weights.embedding, weights.last_norm, weights.head.weight, weights.head.bias)),
            *(len(layers), hidden, weights.layers[0].down.weight.shape[1], spec.num_query_heads),
            *(spec.num_kv_heads, spec.head_dim, self._rotary.width, vocabulary),
            *(weights.epsilon, weights.head_epsilon),
        )
        self._buffers = _Buffers(self._model)

    def __call__(self, attention: LayerAttention, token_ids: Ints, positions: Ints, drawing_tokens: Ints) -> Tensor:
        """Logits [drawing rows, vocabulary], valid until the next call."""
        num_tokens, num_drawing = len(token_ids), len(drawing_tokens)
        self._rotary.cover(int(positions.max()) + 1)
        buffers = self._buffers
        buffers.reserve(num_tokens, num_drawing, torch.get_num_threads())
        positions = np.ascontiguousarray(positions, dtype=np.int64)
        step = self._step(num_tokens, buffers.hidden, buffers.attended, positions)
        if isinstance(attention, TeamAttention):
            calls = attention.team_calls(self._specs, *buffers.heads(num_tokens), buffers.attended)
            arrays = token_ids.ctypes.data, drawing_tokens.ctypes.data
            self._library.forward(self._model, step, calls, *arrays, num_drawing)
        else:
            self._stage_by_stage(attention, step, token_ids, positions, drawing_tokens)
        return buffers.logits[:num_drawing]

    def _stage_by_stage(
        self, attention: LayerAttention, step: StepStruct, token_ids: Ints, positions: Ints, drawing_tokens: Ints
    ) -> None:
        buffers = self._buffers
        hidden = buffers.hidden[: len(token_ids)]
        torch.index_select(self._weights.embedding, 0, torch.from_numpy(token_ids), out=hidden)
        attended = self._attend(attention, step, buffers.heads(len(token_ids)))
        if len(drawing_tokens):
            drawing = torch.from_numpy(drawing_tokens)
            attended, hidden = attended[drawing], hidden[drawing]
            last = self._step(len(drawing_tokens), hidden, attended, positions)
            self._library.stage(self._model, last, len(self._specs))

    def _attend(self, attention: LayerAttention, step: StepStruct, heads: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """All layers up to the attention of the last one, which it returns [tokens, query_heads * head_dim]."""
        stage, model, reference = self._library.stage, self._model, ctypes.byref(step)
        attended = torch.empty(0)
        for layer, spec in enumerate(self._specs):
            stage(model, reference, layer)
            attended = attention.attend(layer, *heads, spec.scaling, spec.window, spec.softcap, None)
            step.attended = attended.data_ptr()
        return attended.flatten(1)

    def _step(self, num_rows: int, hidden: Tensor, attended: Tensor, positions: Ints) -> StepStruct:
        """Points into buffers and arguments, which must outlive it."""
        buffers = self._buffers
        return StepStruct(
            *(hidden.data_ptr(), buffers.normed.data_ptr(), buffers.projected.data_ptr()),
            *(buffers.activated.data_ptr(), buffers.logits.data_ptr(), attended.data_ptr()),
            *(self._rotary.cosines.data_ptr(), self._rotary.sines.data_ptr(), positions.ctypes.data),
            *(num_rows, torch.get_num_threads()),
        )


class _Buffers:
    """What a step computes on its way; large enough for the largest one so far."""

    def __init__(self, model: ModelStruct) -> None:
        self._model = model
        self._num_projected = model.num_query_heads + 2 * model.num_kv_heads
        self.hidden = self.normed = self.projected = self.attended = self.activated = self.logits = torch.empty(0)

    def reserve(self, num_tokens: int, num_logits: int, num_threads: int) -> None:
        """Room for a step; what is already there is not kept."""
        model = self._model
        num_tokens = max(num_tokens, self.hidden.shape[0])
        if self.hidden.shape[0] < num_tokens or self.normed.shape[0] < _OWN_ROWS * num_threads:
            self.hidden = torch.empty(num_tokens, model.hidden)
            self.normed = torch.empty(max(num_tokens, _OWN_ROWS * num_threads), model.hidden)
            self.projected = torch.empty(num_tokens, self._num_projected, model.head_dim)
            self.attended = torch.empty(num_tokens, model.num_query_heads, model.head_dim)
            self.activated = torch.empty(num_tokens, model.intermediate)
        if self.logits.shape[0] < num_logits or self.logits.dim() == 1:
            self.logits = torch.empty(num_logits, model.vocabulary)

    def heads(self, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [heads, tokens, head_dim] of a stage."""
        heads = self.projected[:num_tokens].transpose(0, 1)
        num_query, num_kv = self._model.num_query_heads, self._model.num_kv_heads
        return heads[:num_query], heads[num_query : num_query + num_kv], heads[num_query + num_kv :]
