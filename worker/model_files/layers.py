"""Layers as the cache sees them, the groups they form, and the text that names their configuration.

Layers with the same reach and the same shape share a group, and so one pool of blocks. Pure values; no torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from cache_store.groups import CacheGeometry, CacheGroup, GroupKind

LAYOUT_VERSION = 1
"""Of the block-major layout [num_blocks, layers, 2, block_size, kv_heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Attention of one layer."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    """Width of a query, a key and a value."""
    scaling: float
    """Factor on the scores."""
    window: int
    """Tokens that a query reads, itself included; 0 for all."""
    softcap: float
    """c of c * tanh(score / c); 0 without."""
    num_sinks: int
    """Learned scores beside the keys, one per query head; 0 without."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Layers that share a pool."""

    window: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[int, ...]

    def bytes_per_block(self, block_size: int, element_bytes: int) -> int:
        """2 (keys and values) × layers × tokens × heads × width × element size."""
        return 2 * len(self.layers) * block_size * self.num_kv_heads * self.head_dim * element_bytes


def group_layers(layers: tuple[LayerSpec, ...]) -> tuple[GroupShape, ...]:
    """Groups in the order of the pools: full attention first, then sliding windows, longest first."""
    members: dict[tuple[int, int, int], list[int]] = {}
    for index, layer in enumerate(layers):
        members.setdefault((layer.window, layer.num_kv_heads, layer.head_dim), []).append(index)
    ordered = sorted(members, key=lambda key: (key[0] != 0, -key[0], key[1:]))
    return tuple(GroupShape(*key, tuple(members[key])) for key in ordered)


def geometry(groups: tuple[GroupShape, ...], block_size: int, element_bytes: int) -> CacheGeometry:
    """What the block pool is told of the groups."""
    return CacheGeometry(
        tuple(
            CacheGroup(
                kind=GroupKind.SLIDING if group.window else GroupKind.FULL,
                layers=group.layers,
                bytes_per_block=group.bytes_per_block(block_size, element_bytes),
                window=group.window,
            )
            for group in groups
        ),
        block_size,
    )


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
