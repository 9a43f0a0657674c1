"""Paged attention by the C++ kernel: one call per layer writes keys and values and attends for all rows.

fp32 on a CPU. The library is loaded once per back end; its workspace grows to the largest step and is reused, so a back
end belongs to one thread.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.model_files.layers import LayerSpec
from worker.torch_runner.compiler import Compiler
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.kernel_build import build_kernel
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import GroupBatch, StepBatch


class _Step(ctypes.Structure):
    """`struct Step` of paged_attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tables", "table_starts", "row_starts", "lengths", "blocks", "offsets")),
        *((name, ctypes.c_int32) for name in ("num_rows", "num_tokens", "block_size", "num_threads")),
    )


class _Layer(ctypes.Structure):
    """`struct Layer` of paged_attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "keys", "values", "out", "sinks", "workspace")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "query_token_stride",
                "query_head_stride",
                "key_token_stride",
                "key_head_stride",
                "value_token_stride",
                "value_head_stride",
                "block_stride",
            )
        ),
        *((name, ctypes.c_int32) for name in ("num_query_heads", "num_kv_heads", "head_dim", "window")),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
    )


class NativeAttention:
    """The fast back end. Raises KernelBuildError where the kernel cannot be built."""

    def __init__(self, compiler: Compiler, cache_dir: Path, num_threads: int) -> None:
        library = build_kernel(compiler, cache_dir)
        self._supports = library.stemcache_supports
        self._supports.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int)
        self._workspace_floats = library.stemcache_workspace
        self._workspace_floats.restype = ctypes.c_int64
        self._attend = library.stemcache_attend
        self._attend.restype = None
        self._num_threads = num_threads
        self._workspace = torch.empty(0)

    @property
    def name(self) -> str:
        return "native"

    def supports(self, layer: LayerSpec) -> bool:
        """Whether the kernel computes layers of that shape."""
        return bool(self._supports(layer.num_query_heads, layer.num_kv_heads, layer.head_dim))

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return _NativeStep(self, pools, batch)

    def step_struct(self, batch: StepBatch, group: GroupBatch, block_size: int) -> _Step:
        """What the kernel is told of a step in one group; points into the arrays of `batch`."""
        return _Step(
            _address(group.tables),
            _address(group.table_starts),
            _address(batch.row_starts),
            _address(batch.lengths),
            _address(group.token_blocks),
            _address(batch.token_offsets),
            len(batch.lengths),
            len(batch.token_ids),
            block_size,
            self._num_threads,
        )

    def call(self, step: _Step, layer: _Layer) -> None:
        """Runs the kernel, with as much workspace as it asks for."""
        needed = int(self._workspace_floats(ctypes.byref(step), ctypes.byref(layer)))
        if needed > self._workspace.numel():
            self._workspace = torch.empty(needed)
        layer.workspace = self._workspace.data_ptr()
        self._attend(ctypes.byref(step), ctypes.byref(layer))


class _NativeStep:
    """Attention of one step; keeps the batch's arrays alive for the kernel."""

    def __init__(self, kernel: NativeAttention, pools: KvPools, batch: StepBatch) -> None:
        self._kernel = kernel
        self._pools = pools
        self._batch = batch
        self._steps = [kernel.step_struct(batch, group, pools.block_size) for group in batch.groups]

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
        query, key, value = _dense_last(query), _dense_last(key), _dense_last(value)
        group, _ = self._pools.place(layer)
        pool = self._pools.layer(layer)
        keys, values = pool.keys, pool.values
        num_heads, num_tokens, width = query.shape
        output = torch.empty(num_tokens, num_heads, width)
        sinks = None if sinks is None else sinks.contiguous()
        arguments = _Layer(
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            output.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            None,
            query.stride(1),
            query.stride(0),
            key.stride(1),
            key.stride(0),
            value.stride(1),
            value.stride(0),
            keys.stride(0),
            num_heads,
            key.shape[0],
            width,
            window,
            scaling,
            softcap,
        )
        self._kernel.call(self._steps[group], arguments)
        return output


def _dense_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _address(values: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> int:
    assert values.flags.c_contiguous
    return int(values.ctypes.data)
