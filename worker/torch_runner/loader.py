"""Loads a local Hugging Face folder, checked before and probed after. Nothing is ever downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import structlog
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from cache_store.domain import NO_ADAPTER, KvFormat
from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.groups import CacheGeometry
from cache_store.kv_layout import LAYOUT_VERSION, GroupShape, KvDtype, geometry
from cache_store.tokenizer_files import tokenizer_digest
from worker.model_files.digests import default_cache_dir, weights_digest
from worker.model_files.folder import ModelFolder, check_folder
from worker.model_files.layers import LayerSpec, attention_text, group_layers
from worker.model_files.support import check_supported, max_model_len
from worker.runner import ModelInfo
from worker.torch_runner import hook
from worker.torch_runner.fastest_forward import fastest_forward
from worker.torch_runner.fused_forward import FusedForward
from worker.torch_runner.latent_projection import LatentProjection
from worker.torch_runner.pool_compare import TOLERANCES
from worker.torch_runner.probe import probe_model

_log = structlog.get_logger(__name__)


class ModelDtype(StrEnum):
    """Type of weights, activations, keys and values."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class ForwardChoice(StrEnum):
    """By what a model is computed."""

    FASTEST = "fastest"
    """Our own kernels where they can, else its modules."""
    MODULES = "modules"
    """transformers' modules."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for a runner: its modules call the hook, its layers are known."""

    module: PreTrainedModel
    folder: ModelFolder
    name: str
    device: torch.device
    dtype: ModelDtype
    kv_dtype: KvDtype
    """Of cached keys and values."""
    layers: tuple[LayerSpec, ...]
    groups: tuple[GroupShape, ...]
    latents: Mapping[int, LatentProjection]
    """Of the layers that cache latents: all, or none."""
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    weights_digest: bytes
    attention: str
    """Canonical text of RoPE and attention configuration."""
    tokenizer_digest: str
    fused: FusedForward | None
    """The forward by our own kernels; None: `module` computes."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch names it."""
        return torch_dtype(self.dtype)

    def geometry(self, block_size: int) -> CacheGeometry:
        """What a block pool of that block size is told."""
        return geometry(self.groups, block_size, self.kv_dtype)

    def info(self, block_size: int) -> ModelInfo:
        """What the rest of the worker is told."""
        kv_format = KvFormat(
            weights_digest=self.weights_digest,
            adapter_digest=NO_ADAPTER,
            attention=self.attention,
            model_dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            block_size=block_size,
            layout_version=LAYOUT_VERSION,
        )
        return ModelInfo(
            name=self.name,
            kv_format=kv_format,
            geometry=self.geometry(block_size),
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            eos_token_ids=self.eos_token_ids,
            tokenizer_digest=self.tokenizer_digest,
            tolerance=TOLERANCES[self.kv_dtype],
        )


def with_kv_dtype(model: LoadedModel, wanted: KvDtype) -> LoadedModel:
    """The same model, whose keys and values are cached as `wanted`: as it computes them, or that quantised."""
    if wanted is model.kv_dtype:
        return model
    if not wanted.scale_bytes:
        raise InvalidRequestError(
            "kv_dtype", f"a {model.dtype} model's keys and values are cached as such, int8 or float8_e4m3, not {wanted}"
        )
    if model.latents:
        raise InvalidRequestError("kv_dtype", f"latents are not cached as {wanted}: they are small already; use auto")
    return replace(model, kv_dtype=wanted)


def torch_dtype(dtype: ModelDtype) -> torch.dtype:
    """`dtype` as torch names it."""
    return {
        ModelDtype.FLOAT32: torch.float32,
        ModelDtype.BFLOAT16: torch.bfloat16,
        ModelDtype.FLOAT16: torch.float16,
    }[dtype]


def load_model(
    folder: Path,
    cache_dir: Path | None = None,
    device: str = "cpu",
    dtype: ModelDtype | None = None,
    name: str | None = None,
    num_threads: int = 1,
    forward: ForwardChoice = ForwardChoice.FASTEST,
) -> LoadedModel:
    """Loads and probes the model of `folder`; `cache_dir` remembers digests, `name` is the folder's by default.

    `num_threads` is set for the whole process, as runners do. `dtype` None: on a GPU that of the folder where it is one
    of 16 bits, else float32.

    Raises InvalidRequestError where the folder is not whole or its architecture is not served, PreconditionError where
    this machine cannot compute it.
    """
    place = check_device(device, dtype or ModelDtype.FLOAT32)
    checked = check_folder(folder)
    check_supported(checked.config)
    config = _resolve_config(checked)
    dtype = dtype or preferred_dtype(place, getattr(config, "dtype", None))
    facts = _facts(config)
    check_supported(facts)
    _check_replaceable(config)
    length = max_model_len(facts)
    torch.set_num_threads(num_threads)
    hook.register()
    disable_progress_bar()
    module = _load_module(checked, config, dtype, place)
    layers, latents = probe_model(module, config.vocab_size)
    fused = None
    if forward is ForwardChoice.FASTEST:
        fused = fastest_forward(module, layers, config.vocab_size, cache_dir or default_cache_dir())
    _log.info(
        "model_loaded",
        folder=str(checked.path),
        num_layers=len(layers),
        dtype=str(dtype),
        device=str(place),
        forward="modules" if fused is None else "fused",
    )
    return LoadedModel(
        module=module,
        folder=checked,
        name=name or checked.path.name,
        device=place,
        dtype=dtype,
        kv_dtype=KvDtype(dtype.value),
        layers=layers,
        groups=group_layers(layers),
        latents=latents,
        vocab_size=config.vocab_size,
        max_model_len=length,
        eos_token_ids=_eos_token_ids(checked, facts),
        weights_digest=weights_digest(checked, cache_dir or default_cache_dir()),
        attention=attention_text(facts, layers),
        tokenizer_digest=tokenizer_digest(checked.path),
        fused=fused,
    )


def preferred_dtype(device: torch.device, saved: object) -> ModelDtype:
    """What a model whose weights were `saved` in a type of torch's computes in there."""
    name = str(saved).removeprefix("torch.")
    if device.type == "cuda" and name in (ModelDtype.BFLOAT16, ModelDtype.FLOAT16):
        return ModelDtype(name)
    return ModelDtype.FLOAT32


def check_device(device: str, dtype: ModelDtype) -> torch.device:
    """The device, if it can compute in `dtype` at all sensibly. Raises PreconditionError or InvalidRequestError."""
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InvalidRequestError("device", f"{device!r} is no device; use cpu or cuda") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise PreconditionError(f"device {device!r} was asked for, but torch {torch.__version__} sees no CUDA device")
    if place.type == "cpu" and dtype is not ModelDtype.FLOAT32:
        capability = torch.backends.cpu.get_cpu_capability()
        if "AVX512" not in capability:
            raise PreconditionError(
                f"{dtype} on this CPU ({capability}, no AVX-512) is 8 to 100 times slower than float32; use float32"
            )
        _log.warning("half_precision_on_cpu", dtype=str(dtype), capability=capability)
    return place


def _resolve_config(folder: ModelFolder) -> PretrainedConfig:
    """config.json with the defaults of its class, which is one of causal language models."""
    try:
        config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError, TypeError, AttributeError, StrictDataclassError) as error:
        raise InvalidRequestError("model", f"{folder.path / 'config.json'} is not understood: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InvalidRequestError("model", f"models of type {config.model_type!r} are no causal language models")
    return config


def _facts(config: PretrainedConfig) -> Mapping[str, object]:
    """The resolved configuration as a mapping, with what many classes only tell when they are asked."""
    told = {name: getattr(config, name, None) for name in ("max_position_embeddings", "layer_types")}
    return {**config.to_dict(), **told}


def _check_replaceable(config: PretrainedConfig) -> None:
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not getattr(model_class, "_supports_attention_backend", False):
        raise InvalidRequestError(
            "model", f"models of type {config.model_type!r} are not served: their attention cannot be replaced"
        )


def _load_module(
    folder: ModelFolder, config: PretrainedConfig, dtype: ModelDtype, device: torch.device
) -> PreTrainedModel:
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    try:
        module, report = model_class.from_pretrained(
            folder.path,
            config=config,
            dtype=torch_dtype(dtype),
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        raise InvalidRequestError("model", f"the weights in {folder.path} do not load: {error}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise InvalidRequestError(
            "model", f"{folder.path} lacks {len(missing)} weights that its architecture has, first {missing[0]}"
        )
    return module.to(device).eval().requires_grad_(False)


def _eos_token_ids(folder: ModelFolder, config: Mapping[str, object]) -> tuple[int, ...]:
    """Of generation_config.json where it tells them, as transformers' generate does; else of the configuration."""
    told = folder.generation_config.get("eos_token_id", config.get("eos_token_id"))
    ids = told if isinstance(told, list) else [told]
    return tuple(sorted({token_id for token_id in ids if isinstance(token_id, int)}))
