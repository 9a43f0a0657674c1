"""What a model's keys and values cost: per token, fixed, and of a conversation. Pure.

Every layer that reads everything adds the same to each token. A layer with a window holds one window for each
conversation, however long that gets. So a conversation costs tokens × (layers that read all) + window × (sliding ones).
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.groups import GroupKind
from cache_store.kv_layout import GroupShape
from cache_store.planning.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class KindCost:
    """Layers of one kind."""

    kind: GroupKind
    num_layers: int
    window: int
    """0: they read everything."""
    num_kv_heads: int
    key_dim: int
    value_dim: int
    """0: one latent vector instead of keys and values."""
    element_bytes: int
    scale_bytes: int
    """For each token, layer and head, of keys and of values; 0 where elements have no scales."""
    bytes_per_token: int
    formula: str
    """The multiplications, written out."""


@dataclass(frozen=True, slots=True)
class KvCost:
    """Of one model."""

    kinds: tuple[KindCost, ...]
    bytes_per_token: int
    """That each token adds to a conversation, which is longer than the windows."""
    fixed_bytes: int
    """Windows of a conversation that is longer than they are, beginning at a block's edge."""
    fixed_unaligned_bytes: int
    """The same where they begin within a block: one block more."""
    bytes_per_token_of_all_layers: int
    """What a token would add if sliding layers kept everything."""


def kv_cost(model: ModelShape) -> KvCost:
    """Of a model's layers."""
    fixed = unaligned = 0
    for group in model.groups:
        if group.window:
            per_token = model.bytes_per_token(group)
            num_blocks = -(-group.window // model.block_size)
            fixed += group.window * per_token
            unaligned += (num_blocks + 1) * model.block_size * per_token
    return KvCost(
        kinds=tuple(_kind(model, group) for group in model.groups),
        bytes_per_token=sum(model.bytes_per_token(group) for group in model.groups if not group.window),
        fixed_bytes=fixed,
        fixed_unaligned_bytes=unaligned,
        bytes_per_token_of_all_layers=sum(map(model.bytes_per_token, model.groups)),
    )


def conversation_bytes(model: ModelShape, num_tokens: int) -> int:
    """Keys and values that a conversation of that many tokens reads in its next step, and so holds."""
    return sum(model.bytes_per_token(group) * _tokens_read(group, num_tokens) for group in model.groups)


def _tokens_read(group: GroupShape, num_tokens: int) -> int:
    return min(num_tokens, group.window) if group.window else num_tokens


def _kind(model: ModelShape, group: GroupShape) -> KindCost:
    return KindCost(
        kind=group.kind,
        num_layers=len(group.layers),
        window=group.window,
        num_kv_heads=group.num_kv_heads,
        key_dim=group.key_dim,
        value_dim=group.value_dim,
        element_bytes=model.kv_dtype.element_bytes,
        scale_bytes=model.kv_dtype.scale_bytes,
        bytes_per_token=model.bytes_per_token(group),
        formula=_formula(model, group),
    )


def _formula(model: ModelShape, group: GroupShape) -> str:
    element, scale = model.kv_dtype.element_bytes, model.kv_dtype.scale_bytes
    layers = f"{len(group.layers)} layers"
    if group.kind is GroupKind.LATENT:
        width = f"{group.key_dim} wide × {element} B"
        return f"{layers} × {f'({width} + {scale} B scale)' if scale else width}"
    heads = f"{group.num_kv_heads} KV heads"
    if group.key_dim == group.value_dim:
        width = f"{group.key_dim} wide × {element} B"
        return f"2 × {layers} × {heads} × {f'({width} + {scale} B scale)' if scale else width}"
    width = f"({group.key_dim} + {group.value_dim}) wide × {element} B"
    return f"{layers} × {heads} × {f'({width} + 2 × {scale} B scale)' if scale else width}"
