"""Paged attention in plain torch: gather a row's blocks, then attend densely. For any device, without a compiler."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from worker.torch_runner.dense_attention import dense_attention
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.kv_elements import read, write
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import GroupBatch, StepBatch


class GatherAttention:
    """The fallback back end."""

    @property
    def name(self) -> str:
        return "gather"

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return _GatherStep(pools, batch)


class _GatherStep:
    def __init__(self, pools: KvPools, batch: StepBatch) -> None:
        device = pools.device
        self._pools = pools
        self._starts = batch.row_starts.tolist()
        self._lengths = batch.lengths.tolist()
        self._offsets = torch.from_numpy(batch.token_offsets).to(device)
        self._tables = [_row_tables(group, device) for group in batch.groups]
        self._blocks = [torch.from_numpy(group.token_blocks).to(device) for group in batch.groups]

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
        pool = self._pools.layer(layer)
        places = (self._blocks[group], self._offsets)
        write(pool.keys, pool.key_scales, places, key.transpose(0, 1))
        write(pool.values, pool.value_scales, places, value.transpose(0, 1))
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for row, table in enumerate(self._tables[group]):
            low, high, length = self._starts[row], self._starts[row + 1], self._lengths[row]
            if high - low == length and pool.key_scales is None:  # its whole sequence is at hand
                row_keys, row_values = key[:, low:high], value[:, low:high]
            else:
                first = max(0, length - (high - low) - window + 1) if window else 0
                blocks, skipped = _blocks_of(table, first, length, self._pools.block_size)
                tokens = slice(skipped, skipped + length - first)
                row_keys, row_values = (
                    read(part, scales, blocks, query.dtype)[tokens].transpose(0, 1)
                    for part, scales in ((pool.keys, pool.key_scales), (pool.values, pool.value_scales))
                )
            output[low:high] = dense_attention(
                query[:, low:high], row_keys, row_values, scaling, window, softcap, sinks
            )
        return output


def _blocks_of(table: Tensor, first: int, length: int, block_size: int) -> tuple[Tensor, int]:
    """The blocks that hold positions `first` to `length`, and how many tokens of them lie before `first`."""
    low = first // block_size
    return table[low : -(-length // block_size)], first - low * block_size


def _row_tables(group: GroupBatch, device: torch.device) -> tuple[Tensor, ...]:
    flat = torch.from_numpy(group.tables).to(device)
    bounds = group.table_starts.tolist()
    return tuple(flat[low:high] for low, high in pairwise(bounds))
