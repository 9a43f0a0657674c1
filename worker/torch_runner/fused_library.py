"""The compiled library of the fused forward and the structures that it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from worker.torch_runner.compiler import Compiler
from worker.torch_runner.fused_weights import FusedLayerWeights
from worker.torch_runner.kernel_build import Kernel, build_kernel
from worker.torch_runner.kernel_structs import KernelLayer, KernelStep


class LayerStruct(ctypes.Structure):
    """`struct FusedLayer` of fused_forward.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            *("norm", "projections", "projections_bias", "query_norm", "key_norm", "output", "output_bias"),
            *("mlp_norm", "gate_up", "gate_up_bias", "down", "down_bias"),
        )
    )


class ModelStruct(ctypes.Structure):
    """`struct FusedModel` of fused_forward.cpp."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerStruct)),
        *((name, ctypes.c_void_p) for name in ("embedding", "last_norm", "head", "head_bias")),
        *((name, ctypes.c_int32) for name in ("num_layers", "hidden", "intermediate", "num_query_heads")),
        *((name, ctypes.c_int32) for name in ("num_kv_heads", "head_dim", "rotary_dim", "vocabulary")),
        *((name, ctypes.c_float) for name in ("epsilon", "head_epsilon")),
    )


class StepStruct(ctypes.Structure):
    """`struct FusedStep` of fused_forward.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "normed", "projected", "activated", "logits", "attended")),
        *((name, ctypes.c_void_p) for name in ("cosines", "sines", "positions")),
        *((name, ctypes.c_int32) for name in ("num_rows", "num_threads")),
    )


class AttentionStruct(ctypes.Structure):
    """`struct FusedAttention` of fused_forward.cpp."""

    _fields_ = (
        ("attend", ctypes.c_void_p),
        ("steps", ctypes.POINTER(ctypes.POINTER(KernelStep))),
        ("layers", ctypes.POINTER(KernelLayer)),
    )


class FusedLibrary:
    """What the library offers. Raises KernelBuildError where it cannot be built."""

    def __init__(self, compiler: Compiler, cache_dir: Path) -> None:
        library = build_kernel(compiler, cache_dir, Kernel.FORWARD)
        self.max_head_dim: int = library.stemcache_fused_max_head_dim()
        stage = library.stemcache_fused_stage
        stage.argtypes = (ctypes.POINTER(ModelStruct), ctypes.POINTER(StepStruct), ctypes.c_int)
        stage.restype = None
        self.stage: Callable[[object, object, int], None] = stage
        """(model, step, layer): see fused_forward.cpp."""
        forward = library.stemcache_fused_forward
        forward.argtypes = (
            *(ctypes.POINTER(struct) for struct in (ModelStruct, StepStruct, AttentionStruct)),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
        )
        forward.restype = None
        self.forward: Callable[[object, object, object, int, int, int], None] = forward
        """(model, step, attention, token ids, drawing rows, number of those): see fused_forward.cpp."""
        self._linear = library.stemcache_linear
        self._linear.argtypes = (
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
            *(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
        )
        self._linear.restype = None

    def linear(self, weight: Tensor, bias: Tensor | None, x: Tensor, out: Tensor, num_threads: int) -> None:
        """out [rows, outputs] = x [rows, inputs] . weight [outputs, inputs] + bias; all contiguous float32."""
        assert x.is_contiguous()
        assert weight.is_contiguous()
        assert out.is_contiguous()
        outputs, inputs = weight.shape
        self._linear(
            *(weight.data_ptr(), address(bias), outputs, inputs),
            *(x.data_ptr(), x.shape[0], out.data_ptr(), num_threads),
        )


def address(tensor: Tensor | None) -> int | None:
    """Of its first element."""
    return None if tensor is None else tensor.data_ptr()


def layer_struct(layer: FusedLayerWeights) -> LayerStruct:
    """Points into the weights, which must outlive it."""
    parts = (
        *(layer.norm, layer.projections.weight, layer.projections.bias, layer.query_norm, layer.key_norm),
        *(layer.output.weight, layer.output.bias, layer.mlp_norm, layer.gate_up.weight, layer.gate_up.bias),
        *(layer.down.weight, layer.down.bias),
    )
    return LayerStruct(*(address(part) for part in parts))
