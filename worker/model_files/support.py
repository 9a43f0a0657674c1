"""Which architectures the cache can serve, told from the configuration alone, and why the others are refused.

Works on the resolved configuration (with the defaults of its class) as a plain mapping. What a configuration cannot
tell is found by the probe of `worker/torch_runner/probe.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from cache_store.errors import InvalidRequestError

_SERVED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
_REASONS = {
    "linear_attention": "linear attention keeps a running state instead of keys and values per token",
    "chunked_attention": "chunked attention reads up to a chunk boundary, which no cache group describes",
    "indexed_attention": "sparse indexed attention needs keys of an indexer beside the cache",
    "hybrid": "layers of two kinds in one keep a running state beside keys and values",
    "conv": "convolution layers keep a running state instead of keys and values per token",
}
_STATE = "it keeps a running state instead of keys and values per token"
_POSITION_BIAS = "its attention adds a bias per distance (ALiBi) to the scores, which the cache's attention does not"
_BY_TYPE = {"rwkv": _STATE, "xlstm": _STATE, "bloom": _POSITION_BIAS, "mpt": _POSITION_BIAS}
"""Architectures whose configuration tells nothing of what is in the way."""
_OTHER_MEDIA = ("text_config", "vision_config", "audio_config", "audio_encoder_config", "vq_config")
"""Parts of a configuration that only models of more than text have."""
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""RoPE variants whose keys depend on how long the sequence became later; equal to others up to the original length."""


def check_supported(config: Mapping[str, object]) -> None:
    """Raises InvalidRequestError, with the reason, for an architecture that cannot be served exactly."""
    model_type = config.get("model_type", "unknown")
    reason = _reason_against(config)
    if reason:
        raise InvalidRequestError(
            "model",
            f"models of type {model_type!r} are not served: {reason}. Served are decoder models whose layers all use "
            "full or sliding-window attention with unshared keys and values, such as llama, qwen, mistral or gemma",
        )


def max_model_len(config: Mapping[str, object]) -> int:
    """Longest sequence whose keys do not depend on what follows. Raises InvalidRequestError where it is not told."""
    limit = config.get("max_position_embeddings")
    if not isinstance(limit, int) or limit < 1:
        raise InvalidRequestError("model", "config.json tells no max_position_embeddings; add the most tokens it knows")
    for rope in _rope_parameters(config):
        original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE and isinstance(original, int):
            limit = min(limit, original)
    return limit


def _reason_against(config: Mapping[str, object]) -> str | None:
    if config.get("is_encoder_decoder"):
        return "encoder-decoder models cache keys of two sequences"
    if config.get("quantization_config"):
        return "its weights are quantised, and only float weights are computed here; use the unquantised folder"
    if config.get("index_topk"):
        return _REASONS["indexed_attention"]
    if config.get("num_kv_shared_layers"):
        return "some of its layers read the keys and values of other layers"
    if config.get("use_bidirectional_attention"):
        return "its attention looks ahead, so that a prefix does not determine its keys and values"
    if any(config.get(part) for part in _OTHER_MEDIA):
        return "it reads more than text, and only its text would be served; save its language model as a folder"
    if config.get("alibi"):
        return _POSITION_BIAS
    return _BY_TYPE.get(str(config.get("model_type"))) or _layer_reason(config.get("layer_types"))


def _layer_reason(layer_types: object) -> str | None:
    if not isinstance(layer_types, list | tuple):
        return None
    for layer_type in layer_types:
        if layer_type not in _SERVED_LAYER_TYPES:
            return _REASONS.get(str(layer_type), f"it has layers of type {layer_type!r}")
    return None


def _rope_parameters(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """All sets of RoPE parameters: one for the model, or one per layer type."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return []
    nested = [value for value in rope.values() if isinstance(value, Mapping)]
    return nested or [rope]
