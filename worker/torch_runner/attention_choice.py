"""The attention back end that a worker was asked for, or a clear refusal."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cache_store.errors import PreconditionError
from worker.config import AttentionKind
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.flashinfer_attention import FlashInferAttention, package_wrapper
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.latent_attention import LatentAttention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.triton_choice import triton_attention
from worker.torch_runner.varlen_attention import VarlenAttention, against_flash, against_varlen, torch_varlen


def choose_attention(
    kind: AttentionKind, model: LoadedModel, num_threads: int = 1, cache_dir: Path | None = None
) -> AttentionBackend:
    """Raises PreconditionError, with the reason, where a back end was asked for that cannot be had."""
    if model.latents and kind is AttentionKind.NATIVE:
        raise PreconditionError(f"the {kind} kernels do not read cached latents yet; leave out --attention-backend")
    match kind:
        case AttentionKind.AUTO:
            return fastest_attention(model, num_threads, cache_dir)
        case AttentionKind.TRITON:
            return triton_attention(model)
        case AttentionKind.FLASHINFER:
            return _flashinfer(model)
        case AttentionKind.VARLEN:
            _refuse(kind, against_varlen(model))
            return VarlenAttention(torch_varlen())
        case AttentionKind.GATHER:
            return LatentAttention(model.latents) if model.latents else GatherAttention()
        case AttentionKind.NATIVE:
            backend = fastest_attention(model, num_threads, cache_dir)
            if backend.name != "native":
                raise PreconditionError(
                    "the compiled kernel cannot be had here: it needs a C++ compiler and a float32 model on a CPU; "
                    "leave out --attention-backend"
                )
            return backend


def _flashinfer(model: LoadedModel) -> AttentionBackend:
    reason = against_flash(model)
    if reason is None and find_spec("flashinfer") is None:
        reason = "its package is not installed: pip install flashinfer-python"
    _refuse(AttentionKind.FLASHINFER, reason)
    return FlashInferAttention(model.layers, model.torch_dtype, package_wrapper)


def _refuse(kind: AttentionKind, reason: str | None) -> None:
    if reason is not None:
        raise PreconditionError(f"--attention-backend {kind} cannot be had: {reason}; leave it out for what can")
