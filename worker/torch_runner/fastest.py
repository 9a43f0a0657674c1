"""Which attention a model gets by itself: Triton's kernels on GPUs, the compiled one or plain torch on CPUs."""

from __future__ import annotations

from pathlib import Path

import structlog

from worker.model_files.digests import default_cache_dir
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.compiler import find_compiler
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.kernel_build import KernelBuildError
from worker.torch_runner.latent_attention import LatentAttention
from worker.torch_runner.loader import LoadedModel, ModelDtype
from worker.torch_runner.native_attention import NativeAttention
from worker.torch_runner.triton_choice import triton_attention

_log = structlog.get_logger(__name__)


def fastest_attention(model: LoadedModel, num_threads: int = 1, cache_dir: Path | None = None) -> AttentionBackend:
    """The fastest back end for `model` here; the reason is logged where it is the slower one."""
    if model.device.type == "cuda":
        return triton_attention(model)
    if model.latents:
        return LatentAttention(model.latents)
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
    if model.dtype is not ModelDtype.FLOAT32:
        return f"the kernel computes float32, the model is {model.dtype}"
    return None
