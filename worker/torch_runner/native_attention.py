"""Paged attention by the C++ kernel: one call per layer writes keys and values and attends for all rows.

float32 queries on a CPU; keys and values are stored as float32, int8 or 8 bits of floating point. The library is loaded
once per back end; its workspace grows to the largest step and is reused, so a back end belongs to one thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cache_store.kv_layout import KvDtype
from worker.model_files.layers import LayerSpec
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.compiler import Compiler
from worker.torch_runner.fused_library import AttentionStruct
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.kernel_build import build_kernel
from worker.torch_runner.kernel_structs import KernelLayer, KernelStep
from worker.torch_runner.pools import KvPools, LayerPool
from worker.torch_runner.step_batch import GroupBatch, Slots, StepBatch

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, as `LayerAttention.attend` takes them."""

_ELEMENTS = {KvDtype.FLOAT32: 0, KvDtype.INT8: 1, KvDtype.FLOAT8: 2}


class NativeAttention:
    """The fast back end. Raises KernelBuildError where the kernel cannot be built."""

    def __init__(
        self,
        compiler: Compiler,
        cache_dir: Path,
        num_threads: int,
        order: Order = Order.FREE,
    ) -> None:
        self.library = build_kernel(compiler, cache_dir)
        """Calls as `paged_attention.h` tells."""
        self._workspace_bytes = self.library.stemcache_workspace
        self._workspace_bytes.restype = ctypes.c_int64
        self._attend = self.library.stemcache_attend
        self._attend.restype = None
        self._num_threads = num_threads
        self._order = order
        self._workspace = torch.empty(0, dtype=torch.uint8)
        self._team: TeamLayers | None = None

    @property
    def name(self) -> str:
        return "native"

    def supports(self, layer: LayerSpec) -> bool:
        """Whether the kernel computes layers of that shape."""
        widths = (layer.head_dim, layer.value_dim)
        return bool(self.library.stemcache_supports(layer.num_query_heads, layer.num_kv_heads, *widths))

    def stores(self, dtype: KvDtype) -> bool:
        """Whether the kernel reads and writes such elements."""
        return dtype in _ELEMENTS

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return _NativeStep(self, pools, batch)

    def step_struct(self, batch: StepBatch, group: GroupBatch, block_size: int, window: int) -> KernelStep:
        """What the kernel is told of a step in one group of that window; points into the arrays of both."""
        step = KernelStep(
            tables=_address(group.tables),
            table_starts=_address(group.table_starts),
            row_starts=_address(batch.row_starts),
            lengths=_address(batch.lengths),
            token_blocks=_address(group.token_blocks),
            token_offsets=_address(batch.token_offsets),
            num_rows=len(batch.lengths),
            num_tokens=len(batch.token_ids),
            block_size=block_size,
            num_threads=self._num_threads,
            fixed_order=self._order is Order.FIXED,
        )
        if not window and len(batch.lengths) > 1 and self._order is Order.FREE:
            self._find_shares(step)
        return step

    def _find_shares(self, step: KernelStep) -> None:
        """Rows that begin with the same blocks are told to the kernel, which then reads these once."""
        rows = step.num_rows
        made = np.empty(7 * rows + 1, dtype=np.int32)
        row_shares, starts, members, lengths, scratch = np.split(made, (rows, 2 * rows + 1, 3 * rows + 1, 4 * rows + 1))
        out = [ctypes.c_void_p(_address(part)) for part in (scratch, row_shares, starts, members, lengths)]
        step.num_shares = self.library.stemcache_shares(ctypes.byref(step), *out)
        step.row_shares, step.share_starts = _address(row_shares), _address(starts)
        step.share_rows, step.share_lengths = _address(members), _address(lengths)
        step.kept_alive = made

    def call(self, step: KernelStep, layer: KernelLayer) -> None:
        """Runs the kernel, with as much workspace as it asks for."""
        layer.workspace = self.workspace(step, layer)
        self._attend(ctypes.byref(step), ctypes.byref(layer))

    def workspace(self, step: KernelStep, layer: KernelLayer) -> int:
        """Address of as much workspace as the call asks for, until the next call."""
        needed = int(self._workspace_bytes(ctypes.byref(step), ctypes.byref(layer)))
        if needed > self._workspace.numel():
            self._workspace = torch.empty(needed, dtype=torch.uint8)
        return self._workspace.data_ptr()

    def layers(self, pools: KvPools, specs: Sequence[LayerSpec], heads: Heads, out: Tensor) -> TeamLayers:
        """The calls of all layers, made anew only where other memory is read or written than in the last step."""
        key = (pools, specs, *(tensor.data_ptr() for tensor in (*heads, out)))
        if self._team is None or self._team.key != key:
            self._team = TeamLayers(key, pools, specs, heads, out)
        return self._team

    @property
    def team_address(self) -> int | None:
        """Of the call that all threads of a team make."""
        return ctypes.cast(self.library.stemcache_attend_in_team, ctypes.c_void_p).value


def pool_fields(pool: LayerPool, dtype: KvDtype) -> dict[str, int]:
    """The fields of a KernelLayer that tell of a layer's pool; a latent pool has no values of its own."""
    parts = {"keys": pool.keys, "key_scales": pool.key_scales, "value_scales": pool.value_scales}
    if pool.values.numel():
        parts["values"] = pool.values
    addresses = {name: part.data_ptr() for name, part in parts.items() if part is not None}
    stride = pool.keys.stride(0) * pool.keys.element_size()
    return {**addresses, "block_stride": stride, "element": _ELEMENTS[dtype], "num_kv_heads": pool.keys.shape[2]}


class _NativeStep:
    """Attention of one step; keeps the batch's arrays alive for the kernel."""

    def __init__(self, kernel: NativeAttention, pools: KvPools, batch: StepBatch) -> None:
        self._kernel = kernel
        self._pools = pools
        self._batch = batch
        self._steps = [
            kernel.step_struct(batch, group, pools.block_size, pool.shape.window)
            for group, pool in zip(batch.groups, pools.groups, strict=True)
        ]

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
        heads = _dense_last(query), _dense_last(key), _dense_last(value)
        group, _ = self._pools.place(layer)
        num_heads, num_tokens, _ = query.shape
        output = torch.empty(num_tokens, num_heads, value.shape[2])
        sinks = None if sinks is None else sinks.contiguous()
        call = layer_call(self._pools, layer, heads, output, scaling, window, softcap)
        call.sinks = None if sinks is None else sinks.data_ptr()
        self._kernel.call(self._steps[group], call)
        return output

    def team_calls(
        self, layers: Sequence[LayerSpec], query: Tensor, key: Tensor, value: Tensor, out: Tensor
    ) -> AttentionStruct:
        team = self._kernel.layers(self._pools, layers, (query, key, value), out)
        pointers = [ctypes.pointer(step) for step in self._steps]
        steps = (ctypes.POINTER(KernelStep) * len(layers))(*(pointers[group] for group in team.groups))
        firsts = zip(self._steps, team.first_of_group, strict=True)
        workspaces = [self._kernel.workspace(step, team.layers[first]) for step, first in firsts]
        team.use_workspace(workspaces[-1])  # of the group that needs most: it only grows
        return AttentionStruct(self._kernel.team_address, steps, team.layers)


class TeamLayers:
    """The calls of all layers of a forward whose queries, keys, values and outputs lie where they lay before."""

    def __init__(
        self, key: tuple[object, ...], pools: KvPools, specs: Sequence[LayerSpec], heads: Heads, out: Tensor
    ) -> None:
        self.key = key
        self.groups = [pools.place(layer)[0] for layer in range(len(specs))]
        self.first_of_group = [self.groups.index(group) for group in range(len(pools.groups))]
        self.layers = (KernelLayer * len(specs))(
            *(
                layer_call(pools, layer, heads, out, spec.scaling, spec.window, spec.softcap)
                for layer, spec in enumerate(specs)
            )
        )
        self._workspace = 0

    def use_workspace(self, address: int) -> None:
        """Of the next forward, for all layers in turn."""
        if address != self._workspace:
            self._workspace = address
            for layer in self.layers:
                layer.workspace = address


def layer_call(
    pools: KvPools, layer: int, heads: Heads, out: Tensor, scaling: float, window: int, softcap: float
) -> KernelLayer:
    """One layer's call without sinks and workspace; points into the pools, `heads` and `out`, which must outlive it."""
    query, key, value = heads
    group, place = pools.place(layer)
    pool = pools.groups[group]
    return KernelLayer(
        query=query.data_ptr(),
        key=key.data_ptr(),
        value=value.data_ptr(),
        out=out.data_ptr(),
        query_token_stride=query.stride(1),
        query_head_stride=query.stride(0),
        key_token_stride=key.stride(1),
        key_head_stride=key.stride(0),
        value_token_stride=value.stride(1),
        value_head_stride=value.stride(0),
        num_query_heads=query.shape[0],
        key_width=query.shape[2],
        value_width=value.shape[2],
        window=window,
        scaling=scaling,
        softcap=softcap,
        **pool_fields(pool.layer(place), pool.dtype),
    )


def _dense_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _address(values: npt.NDArray[np.int32] | npt.NDArray[np.int64] | Slots) -> int:
    assert values.flags.c_contiguous
    return int(values.ctypes.data)
