"""Which attention back end a model gets on its device: the compiled kernel where it can be, else plain torch."""

from __future__ import annotations

from pathlib import Path

import structlog

from worker.model_files.digests import default_cache_dir
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.compiler import find_compiler
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.kernel_build import KernelBuildError
from worker.torch_runner.loader import LoadedModel, ModelDtype
from worker.torch_runner.native_attention import NativeAttention

_log = structlog.get_logger(__name__)


def fastest_attention(model: LoadedModel, num_threads: int = 1, cache_dir: Path | None = None) -> AttentionBackend:
    """The fastest back end for `model` here; the reason is logged where it is the slower one."""
    reason = _against_native(model)
    compiler = find_compiler()
    if reason is None and compiler is not None:
        try:
            kernel = NativeAttention(compiler, cache_dir or default_cache_dir(), num_threads)
        except KernelBuildError as error:
            reason = str(error)
        else:
            if all(kernel.supports(layer) for layer in model.layers):
                return kernel
            reason = "the kernel does not compute heads of this width"
    _log.warning("attention_without_kernel", reason=reason or "no C++ compiler is installed", effect="slower decoding")
    return GatherAttention()


def _against_native(model: LoadedModel) -> str | None:
    if model.device.type != "cpu":
        return f"the kernel is for CPUs, the model is on {model.device}"
    if model.dtype is not ModelDtype.FLOAT32:
        return f"the kernel computes float32, the model is {model.dtype}"
    return None
