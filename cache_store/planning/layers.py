"""Which keys and values each layer of a model caches, told from its config.json alone.

What a worker serves, it finds out by running the model (`worker/torch_runner/probe.py`); tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import GroupShape
from cache_store.planning.families import WindowRule
from cache_store.planning.model_config import ModelConfig

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads and widths of a model's attention, the same in all layers."""

    num_query_heads: int
    num_kv_heads: int
    query_dim: int
    """Width of a query, and of a key where it is used."""
    value_dim: int
    """Width of a value where it is used."""
    latent_dim: int
    """Width of what is cached instead of keys and values; 0: they are cached themselves."""


def attention_shape(config: ModelConfig) -> AttentionShape:
    """Raises InvalidRequestError where a field is missing."""
    num_heads = config.number("num_attention_heads")
    latent = config.optional("kv_lora_rank")
    if latent:
        rotary = config.number("qk_rope_head_dim")
        query_dim = config.number("qk_nope_head_dim") + rotary
        return AttentionShape(num_heads, num_heads, query_dim, config.number("v_head_dim"), latent + rotary)
    num_kv_heads = config.optional("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise InvalidRequestError(
            "model", f"config.json: {num_heads} query heads are not divided by {num_kv_heads} key-value heads"
        )
    head_dim = config.optional("head_dim") or config.number("hidden_size") // num_heads
    return AttentionShape(num_heads, num_kv_heads, head_dim, head_dim, 0)


def layer_windows(config: ModelConfig) -> tuple[int, ...]:
    """Tokens that a query of each layer reads, itself included; 0 for all."""
    num_layers = config.number("num_hidden_layers")
    window = config.optional("sliding_window") or 0
    if config.switch("use_sliding_window") is False:
        window = 0
    types = config.texts("layer_types") or tuple(
        _SLIDING if window and _slides(config, index) else _FULL for index in range(num_layers)
    )
    if len(types) != num_layers:
        raise InvalidRequestError("model", f"config.json: {num_layers} layers, but {len(types)} layer_types")
    unknown = sorted(set(types) - {_FULL, _SLIDING})
    if unknown:
        raise InvalidRequestError(
            "model",
            f"layers of type {unknown[0]!r} keep other state than keys and values per token, which is not planned for; "
            f"known are {_FULL} and {_SLIDING}",
        )
    return tuple(window if each == _SLIDING else 0 for each in types)


def layer_groups(attention: AttentionShape, windows: tuple[int, ...]) -> tuple[GroupShape, ...]:
    """Layers that share a pool: full attention first, then windows, longest first, as a worker orders them."""
    members: dict[int, list[int]] = {}
    for index, window in enumerate(windows):
        members.setdefault(window, []).append(index)
    heads, key_dim, value_dim = attention.num_kv_heads, attention.query_dim, attention.value_dim
    if attention.latent_dim:
        heads, key_dim, value_dim = 1, attention.latent_dim, 0
    return tuple(
        GroupShape(window, heads, key_dim, value_dim, tuple(members[window]))
        for window in sorted(members, key=lambda each: (each != 0, -each))
    )


def _slides(config: ModelConfig, layer: int) -> bool:
    match config.family.windows:
        case WindowRule.NEVER:
            return False
        case WindowRule.ALL:
            return True
        case WindowRule.FROM_LAYER:
            return layer >= (config.optional("max_window_layers") or 0)
        case WindowRule.EVEN_BEFORE:
            return layer % 2 == 0 and layer < (config.optional("max_window_layers") or 0)
        case WindowRule.ALL_BUT_EVERY:
            return (layer + 1) % config.number("sliding_window_pattern") != 0
        case WindowRule.WITHOUT_ROPE:
            with_rope = config.numbers("no_rope_layers")  # 1 where a layer has position embedding, in spite of the name
            if with_rope is not None:
                return layer < len(with_rope) and not with_rope[layer]
            return (layer + 1) % config.number("no_rope_layer_interval") == 0
