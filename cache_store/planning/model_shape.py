"""Everything about a model that decides sizes, out of its folder or its config.json alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.groups import CacheGeometry
from cache_store.kv_layout import GroupShape, KvDtype, geometry
from cache_store.planning.layers import AttentionShape, attention_shape, layer_groups, layer_windows
from cache_store.planning.model_config import ModelConfig, config_path, parse_config, read_config
from cache_store.planning.tensor_headers import tensor_headers
from cache_store.planning.weight_count import count_weights
from cache_store.planning.weights import Weights, counted_weights, given_weights, stored_weights

COMPUTED_DTYPES = (KvDtype.FLOAT32, KvDtype.BFLOAT16, KvDtype.FLOAT16)
"""In which a model computes; caches have more."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the files do not decide."""

    dtype: KvDtype | None = None
    """Of the weights; None: as config.json says."""
    kv_dtype: KvDtype | None = None
    """Of keys and values; None: as the weights."""
    block_size: int = 16
    weights_bytes: int | None = None
    """None: by headers, or counted."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model."""

    name: str
    model_type: str
    max_tokens: int
    """Longest sequence by its configuration; 0 where it tells none."""
    dtype: KvDtype
    kv_dtype: KvDtype
    block_size: int
    attention: AttentionShape
    groups: tuple[GroupShape, ...]
    weights: Weights
    has_quantised_weights: bool

    @property
    def geometry(self) -> CacheGeometry:
        """What a block pool is told."""
        return geometry(self.groups, self.block_size, self.kv_dtype)

    def bytes_per_token(self, group: GroupShape) -> int:
        """Of one token in one group; a whole number, since scales and elements are kept per token."""
        return group.bytes_per_block(self.block_size, self.kv_dtype) // self.block_size


def read_model(path: Path, choices: Choices) -> ModelShape:
    """Of a model folder or its config.json. Raises InvalidRequestError."""
    file = config_path(path)
    folder = path.expanduser() if path.expanduser().is_dir() else None
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return shape_of(name, read_config(file), choices, folder)


def parse_model(name: str, content: dict[str, object], choices: Choices) -> ModelShape:
    """Of the content of a config.json."""
    return shape_of(name, parse_config(content), choices, None)


def shape_of(name: str, config: ModelConfig, choices: Choices, folder: Path | None) -> ModelShape:
    """With the weights of `folder` where it has any. Raises InvalidRequestError."""
    dtype = choices.dtype or _own_dtype(config)
    attention = attention_shape(config)
    return ModelShape(
        name=name,
        model_type=config.model_type,
        max_tokens=config.optional("max_position_embeddings") or 0,
        dtype=dtype,
        kv_dtype=_kv_dtype(choices.kv_dtype, dtype, attention),
        block_size=choices.block_size,
        attention=attention,
        groups=layer_groups(attention, layer_windows(config)),
        weights=_weights(config, attention, dtype, choices, folder),
        has_quantised_weights=bool(config.mapping("quantization_config")),
    )


def _weights(
    config: ModelConfig, attention: AttentionShape, dtype: KvDtype, choices: Choices, folder: Path | None
) -> Weights:
    count = count_weights(config, attention)
    if choices.weights_bytes is not None:
        return given_weights(choices.weights_bytes, count)
    headers = tensor_headers(folder) if folder is not None else ()
    if headers:
        return stored_weights(headers, count, dtype, config.is_set("tie_word_embeddings"))
    return counted_weights(config, count, dtype)


def _kv_dtype(wanted: KvDtype | None, dtype: KvDtype, attention: AttentionShape) -> KvDtype:
    """Keys and values are cached as they are computed, or quantised, as workers do."""
    if wanted is None or wanted is dtype:
        return dtype
    if not wanted.scale_bytes:
        raise InvalidRequestError(
            "kv_dtype",
            f"keys and values of a {dtype} model are cached as such, int8 or float8_e4m3, not {wanted}; another type "
            "of the model is --dtype",
        )
    if attention.latent_dim:
        raise InvalidRequestError("kv_dtype", f"latents are not cached as {wanted}: they are small already; use auto")
    return wanted


def _own_dtype(config: ModelConfig) -> KvDtype:
    """Of config.json; 16 bit for quantised weights, which say nothing; else the usual default, 32 bit."""
    text = config.text("dtype") or config.text("torch_dtype")
    if text is None:
        return KvDtype.BFLOAT16 if config.mapping("quantization_config") else KvDtype.FLOAT32
    known = {str(each): each for each in COMPUTED_DTYPES}
    if text.removeprefix("torch.") not in known:
        raise InvalidRequestError(
            "model",
            f"config.json: weights of type {text!r} are not planned for; name one with --dtype {'|'.join(known)}",
        )
    return known[text.removeprefix("torch.")]
