"""Attention by torch's own variable-length operator (FlashAttention), for 16-bit models on GPUs. No GPU has run it yet.

What each row reads is gathered out of its blocks first: the operator's own block tables want blocks of 256 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
from torch import Tensor

from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.loader import LoadedModel, ModelDtype
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import GroupBatch, StepBatch
from worker.torch_runner.step_upload import upload
from worker.torch_runner.work_items import Words

VarlenOperator = Callable[..., Tensor]
"""As torch.nn.attention.varlen.varlen_attn."""


def against_flash(model: LoadedModel) -> str | None:
    """Why FlashAttention cannot compute a model; None where it can."""
    if model.device.type != "cuda":
        return f"it needs a CUDA device, the model is on {model.device}"
    if model.dtype is ModelDtype.FLOAT32 or model.kv_dtype.value != model.dtype.value:
        return f"it computes 16-bit models with a cache of their type, not {model.dtype} over {model.kv_dtype}"
    if model.latents or any(layer.head_dim != layer.value_dim or layer.head_dim > 256 for layer in model.layers):
        return "it needs keys and values of one width of at most 256"
    if any(layer.num_sinks for layer in model.layers):
        return "it knows no attention sinks"
    return None


def against_varlen(model: LoadedModel) -> str | None:
    """Why the operator cannot compute a model; None where it can."""
    if any(layer.softcap for layer in model.layers):
        return "it knows no capped scores"
    return against_flash(model)


@dataclass(frozen=True, slots=True)
class _Gather:
    """What all rows of a step read in one group, one row after the other."""

    slots: Tensor
    offsets: Tensor
    ends: Tensor
    """[rows + 1]: where each row's tokens begin."""
    longest: int
    new_slots: Tensor
    """[new tokens]."""


class VarlenAttention:
    """A back end."""

    def __init__(self, operator: VarlenOperator) -> None:
        self._operator = operator

    @property
    def name(self) -> str:
        return "varlen"

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return _VarlenStep(self._operator, pools, batch)


class _VarlenStep:
    def __init__(self, operator: VarlenOperator, pools: KvPools, batch: StepBatch) -> None:
        self._operator = operator
        self._pools = pools
        self._longest_new = int(np.diff(batch.row_starts).max())
        arrays = [batch.row_starts, batch.token_offsets.astype(np.int32)]
        longest = []
        for group, pool in zip(batch.groups, pools.groups, strict=True):
            parts = _places(batch, group, pool.shape.window, pools.block_size)
            longest.append(int(np.diff(parts[2]).max()))
            arrays += [*parts, group.token_blocks.astype(np.int32)]
        self._row_starts, self._offsets, *rest = upload(arrays, pools.device)
        self._groups = []
        for index, most in enumerate(longest):
            slots, offsets, ends, new_slots = rest[4 * index : 4 * index + 4]
            self._groups.append(_Gather(slots, offsets, ends, most, new_slots))

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
        assert not softcap, "refused at the choice"
        assert sinks is None, "refused at the choice"
        index, _ = self._pools.place(layer)
        pool, gather = self._pools.layer(layer), self._groups[index]
        for elements, vectors in ((pool.keys, key), (pool.values, value)):
            elements.index_put_((gather.new_slots, self._offsets), vectors.transpose(0, 1))
        output = self._operator(
            query.transpose(0, 1).contiguous(),
            pool.keys[gather.slots, gather.offsets],
            pool.values[gather.slots, gather.offsets],
            self._row_starts,
            gather.ends,
            self._longest_new,
            gather.longest,
            scale=scaling,
            window_size=(window - 1, 0) if window else (-1, 0),
            enable_gqa=query.shape[0] != key.shape[0],
        )
        return output.contiguous()


def _places(batch: StepBatch, group: GroupBatch, window: int, block_size: int) -> tuple[Words, Words, Words]:
    """Slots and offsets of all tokens that rows read, and where each row's begin."""
    slots, offsets, ends = [], [], [0]
    bounds = pairwise(batch.row_starts.tolist())
    for row, ((low, high), length) in enumerate(zip(bounds, batch.lengths.tolist(), strict=True)):
        first = max(0, length - (high - low) - window + 1) if window else 0
        positions = np.arange(first, length)
        slots.append(group.tables[group.table_starts[row] + positions // block_size])
        offsets.append((positions % block_size).astype(np.int32))
        ends.append(ends[-1] + length - first)
    return np.concatenate(slots), np.concatenate(offsets), np.array(ends, np.int32)


def torch_varlen() -> VarlenOperator:
    """The operator of the torch that is installed."""
    from torch.nn.attention.varlen import varlen_attn  # not every build of torch has what it needs

    return cast(VarlenOperator, varlen_attn)  # it gives more than a tensor only where that is asked for
