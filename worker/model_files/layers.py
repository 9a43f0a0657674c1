"""Layers as the cache sees them, the groups they form, and the text that names their configuration.

Layers with the same reach and the same shape share a group (`cache_store/kv_layout.py`), and so one pool of blocks.
Pure values; no torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from cache_store.kv_layout import GroupShape


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Attention of one layer."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    """Width of a query and a key."""
    value_dim: int
    """Width of a value."""
    scaling: float
    """Factor on the scores."""
    window: int
    """Tokens that a query reads, itself included; 0 for all."""
    softcap: float
    """c of c * tanh(score / c); 0 without."""
    num_sinks: int
    """Learned scores beside the keys, one per query head; 0 without."""
    latent_dim: int = 0
    """Width of the vector per token that is cached, and of which keys and values are made at use; 0: they are cached.
    """


def group_layers(layers: tuple[LayerSpec, ...]) -> tuple[GroupShape, ...]:
    """Groups in the order of the pools: full attention first, then sliding windows, longest first."""
    members: dict[tuple[int, int, int, int], list[int]] = {}
    for index, layer in enumerate(layers):
        shape = (layer.window, layer.num_kv_heads, layer.head_dim, layer.value_dim)
        members.setdefault((0, 1, layer.latent_dim, 0) if layer.latent_dim else shape, []).append(index)
    ordered = sorted(members, key=lambda key: (key[0] != 0, -key[0], key[1:]))
    return tuple(GroupShape(*key, tuple(members[key])) for key in ordered)


def attention_text(config: Mapping[str, object], layers: tuple[LayerSpec, ...]) -> str:
    """Canonical JSON of everything beside the weights that changes keys and values: RoPE and the layers' attention."""
    rope = {key: config[key] for key in sorted(config) if "rope" in key or "rotary" in key}
    facts = {
        "model_type": config.get("model_type"),
        "rope": rope,
        "max_position_embeddings": config.get("max_position_embeddings"),
        "layers": [dataclasses.astuple(layer) for layer in layers],
    }
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
