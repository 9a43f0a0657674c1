"""Which forward a model gets: our own kernels where its structure allows and they give its logits, else its modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import structlog
import torch
from torch import Tensor
from transformers import PreTrainedModel

from cache_store.errors import InvalidRequestError
from worker.model_files.layers import LayerSpec
from worker.torch_runner.compiler import Compiler, find_compiler
from worker.torch_runner.fused_forward import FusedForward
from worker.torch_runner.fused_library import FusedLibrary
from worker.torch_runner.fused_weights import UnfitError, check_structure, fuse_weights
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.kernel_build import KernelBuildError
from worker.torch_runner.probe import probe_forward

_log = structlog.get_logger(__name__)


def fastest_forward(
    module: PreTrainedModel, layers: Sequence[LayerSpec], vocab_size: int, cache_dir: Path
) -> FusedForward | None:
    """The fused forward of `module`, checked against its logits; None, with the reason logged, where it has none."""
    try:
        compiler = _check_machine(module)
        check_structure(module, layers)
        library, weights = FusedLibrary(compiler, cache_dir), fuse_weights(module)
        probe_forward(module, vocab_size, _all_logits(FusedForward(library, weights, layers)))
    except (UnfitError, KernelBuildError, InvalidRequestError) as error:
        _log.info("forward_by_modules", model_type=module.config.model_type, reason=str(error))
        return None
    return FusedForward(library, weights, layers)  # another one, whose tables have not grown to the farthest position


def _check_machine(module: PreTrainedModel) -> Compiler:
    if module.device.type != "cpu" or module.dtype is not torch.float32:
        raise UnfitError(f"the kernels compute float32 on a CPU, not {module.dtype} on {module.device}")
    compiler = find_compiler()
    if compiler is None:
        raise UnfitError("no C++ compiler is installed")
    return compiler


def _all_logits(fused: FusedForward) -> Callable[[LayerAttention, Tensor, Tensor], Tensor]:
    def compute(attention: LayerAttention, tokens: Tensor, positions: Tensor) -> Tensor:
        return fused(attention, tokens.numpy(), positions.numpy(), np.arange(tokens.shape[0]))

    return compute
