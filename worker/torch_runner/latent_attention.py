"""Attention over cached latents (MLA), in torch operations, on any device.

A row with few new tokens has its queries carried into the space of the latents, which then are keys and values of
one head that all queries share: nothing is expanded. A row with many new tokens expands its own older tokens, a few
heads at a time; its new ones come expanded from the model. Whichever takes fewer multiplications is done, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from worker.torch_runner.dense_attention import dense_attention
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.latent_projection import LatentProjection
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import GroupBatch, StepBatch

_EXPANDED_ELEMENTS = 1 << 24
"""Of keys at once: bounds what a row with a long history expands."""


@dataclass(frozen=True, slots=True)
class LatentRow:
    """The share of one sequence in a batch."""

    low: int
    high: int
    """Its new tokens in the batch."""
    length: int
    """Tokens readable after the step."""

    @property
    def num_new(self) -> int:
        """New tokens."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class LatentCall:
    """One layer's attention over a batch."""

    projection: LatentProjection
    query: Tensor
    """[query_heads, tokens, key width]."""
    key: Tensor
    """Of the new tokens, expanded: [query_heads, tokens, key width]."""
    value: Tensor
    """[query_heads, tokens, value width]."""
    scaling: float
    window: int
    softcap: float
    sinks: Tensor | None

    def is_cheaper_absorbed(self, row: LatentRow) -> bool:
        """Whether attending to latents takes fewer multiplications than expanding the row's older tokens."""
        rank, width = self.projection.rank, self.key.shape[2]
        value_width = self.value.shape[2]
        rotary = width - self.projection.keys.shape[1]
        expansion = (width - rotary + value_width) * rank
        absorbed = row.num_new * row.length * (2 * rank + rotary) + row.num_new * expansion
        expanded = row.num_new * row.length * (width + value_width) + (row.length - row.num_new) * expansion
        return absorbed < expanded


def attend_to_latents(call: LatentCall, rows: Sequence[LatentRow], latents_of: Callable[[int], Tensor]) -> Tensor:
    """What each token reads: [tokens, query_heads, value width].

    `latents_of` gives the latents [length, rank + rotary] of a row by its number, its new tokens among them.
    """
    num_heads, num_tokens, _ = call.query.shape
    output = call.query.new_empty(num_tokens, num_heads, call.value.shape[2])
    absorbed = [number for number, row in enumerate(rows) if call.is_cheaper_absorbed(row)]
    if absorbed:
        tokens = torch.cat([torch.arange(rows[number].low, rows[number].high) for number in absorbed])
        tokens = tokens.to(output.device)
        output[tokens] = _absorbed(call, tokens, [rows[number] for number in absorbed], absorbed, latents_of)
    for number, row in enumerate(rows):
        if number not in absorbed:
            output[row.low : row.high] = _expanded(call, row, latents_of(number))
    return output


def _absorbed(
    call: LatentCall,
    tokens: Tensor,
    rows: Sequence[LatentRow],
    numbers: Sequence[int],
    latents_of: Callable[[int], Tensor],
) -> Tensor:
    """[tokens, query_heads, value width] of the batch's `tokens`, which are those of `rows`."""
    query = call.projection.absorb(call.query[:, tokens])
    read = []
    first = 0
    for row, number in zip(rows, numbers, strict=True):
        latents = latents_of(number).unsqueeze(0)
        part = query[:, first : first + row.num_new]
        read.append(dense_attention(part, latents, latents, call.scaling, call.window, call.softcap, call.sinks))
        first += row.num_new
    return call.projection.release(torch.cat(read)[..., : call.projection.rank].transpose(0, 1)).transpose(0, 1)


def _expanded(call: LatentCall, row: LatentRow, latents: Tensor) -> Tensor:
    """[new tokens, query_heads, value width]."""
    num_heads, _, width = call.key.shape
    value_width = call.value.shape[2]
    step = max(1, _EXPANDED_ELEMENTS // (row.length * width))
    new = slice(row.low, row.high)
    older = latents[: row.length - row.num_new]
    parts = []
    for first in range(0, num_heads, step):
        heads = slice(first, min(num_heads, first + step))
        keys, values = call.key[heads, new], call.value[heads, new]
        if older.shape[0]:
            older_keys, older_values = call.projection.expand(older, heads)
            keys, values = torch.cat((older_keys, keys), dim=1), torch.cat((older_values, values), dim=1)
        values = pad(values, (0, width - value_width))  # equal widths have a fused kernel
        sinks = None if call.sinks is None else call.sinks[heads]
        query = call.query[heads, new]
        read = dense_attention(query, keys, values, call.scaling, call.window, call.softcap, sinks)
        parts.append(read[..., :value_width])
    return torch.cat(parts, dim=1)


class LatentAttention:
    """The back end of models whose layers all cache latents."""

    def __init__(self, projections: Mapping[int, LatentProjection]) -> None:
        self._projections = projections

    @property
    def name(self) -> str:
        return "latent"

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return _LatentStep(self._projections, pools, batch)


class _LatentStep:
    """Attention of one step; also the store of its latents."""

    def __init__(self, projections: Mapping[int, LatentProjection], pools: KvPools, batch: StepBatch) -> None:
        device = pools.device
        self._projections = projections
        self._pools = pools
        starts = batch.row_starts.tolist()
        spans = zip(pairwise(starts), batch.lengths.tolist(), strict=True)
        self._rows = [LatentRow(low, high, length) for (low, high), length in spans]
        self._offsets = torch.from_numpy(batch.token_offsets).to(device)
        self._tables = [_row_tables(group, device) for group in batch.groups]
        self._blocks = [torch.from_numpy(group.token_blocks).to(device) for group in batch.groups]

    def store_latents(self, layer: int, latents: Tensor) -> None:
        group, _ = self._pools.place(layer)
        self._pools.layer(layer).keys.index_put_((self._blocks[group], self._offsets), latents.unsqueeze(1))

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
        group, _ = self._pools.place(layer)
        keys, tables = self._pools.layer(layer).keys, self._tables[group]
        call = LatentCall(self._projections[layer], query, key, value, scaling, window, softcap, sinks)

        def latents_of(row: int) -> Tensor:
            return keys.index_select(0, tables[row]).view(-1, keys.shape[-1])[: self._rows[row].length]

        return attend_to_latents(call, self._rows, latents_of)


def _row_tables(group: GroupBatch, device: torch.device) -> tuple[Tensor, ...]:
    flat = torch.from_numpy(group.tables).to(device)
    return tuple(flat[low:high] for low, high in pairwise(group.table_starts.tolist()))
