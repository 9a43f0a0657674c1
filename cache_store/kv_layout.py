"""What the bytes of a block are: element types, the shapes of cache groups, and their sizes. Pure values; no torch.

A block of a group holds, layer after layer, the keys of its tokens, their values, and, where elements are quantised, a
scale for each token and head of the keys and of the values. A latent group holds one vector for each token instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cache_store.groups import CacheGeometry, CacheGroup, GroupKind

LAYOUT_VERSION = 2
"""Of the block-major layout [num_slots, layers, (keys, values, key scales, value scales), block_size, kv_heads, width].
"""

_SCALE_BYTES = 4


class KvDtype(StrEnum):
    """Type of the elements of cached keys and values."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
    FLOAT8 = "float8_e4m3"

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return {KvDtype.FLOAT32: 4, KvDtype.BFLOAT16: 2, KvDtype.FLOAT16: 2}.get(self, 1)

    @property
    def scale_bytes(self) -> int:
        """Bytes of the float32 scale of one token and head, of keys or of values; 0 where elements are not scaled."""
        return _SCALE_BYTES if self.element_bytes == 1 else 0


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Layers that share a pool."""

    window: int
    """Tokens that a query reads, itself included; 0 for all."""
    num_kv_heads: int
    key_dim: int
    """Width of a key; of a latent vector where `value_dim` is 0."""
    value_dim: int
    """Width of a value; 0 where keys and values are made of one latent vector."""
    layers: tuple[int, ...]

    @property
    def kind(self) -> GroupKind:
        """How far back its layers read, and what they read."""
        if self.value_dim == 0:
            return GroupKind.LATENT
        return GroupKind.SLIDING if self.window else GroupKind.FULL

    def element_bytes(self, block_size: int, dtype: KvDtype) -> int:
        """Bytes of one layer's elements in a block: tokens × heads × (key width + value width) × element size.

        Rounded up to whole scales where there are scales.
        """
        size = block_size * self.num_kv_heads * (self.key_dim + self.value_dim) * dtype.element_bytes
        return -(-size // _SCALE_BYTES) * _SCALE_BYTES if dtype.scale_bytes else size

    def layer_bytes(self, block_size: int, dtype: KvDtype) -> int:
        """Bytes of one layer in a block: its elements, then a scale per token and head of keys and of values."""
        num_scaled = 2 if self.value_dim else 1
        scales = num_scaled * block_size * self.num_kv_heads * dtype.scale_bytes
        return self.element_bytes(block_size, dtype) + scales

    def bytes_per_block(self, block_size: int, dtype: KvDtype) -> int:
        """Bytes of a block in all layers of the group."""
        return len(self.layers) * self.layer_bytes(block_size, dtype)


def geometry(groups: tuple[GroupShape, ...], block_size: int, dtype: KvDtype) -> CacheGeometry:
    """What a block pool is told of the groups."""
    return CacheGeometry(
        tuple(
            CacheGroup(
                kind=group.kind,
                layers=group.layers,
                bytes_per_block=group.bytes_per_block(block_size, dtype),
                window=group.window,
            )
            for group in groups
        ),
        block_size,
    )
