"""Cache groups: layers whose blocks have the same shape and the same lifetime share one pool of slots."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GroupKind(StrEnum):
    """How far back the layers of a group read, and what."""

    FULL = "full"
    SLIDING = "sliding"
    LATENT = "latent"
    """Everything, as one compressed vector per token of which keys and values are made at use."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One pool of equally shaped blocks."""

    kind: GroupKind
    layers: tuple[int, ...]
    """Indices of the model's layers."""
    bytes_per_block: int
    """Keys and values of all its layers for one block of tokens."""
    window: int
    """Tokens that a query reads, itself included; 0 where it reads all."""


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """What a runner needs of a block pool. `groups` begins with the full-attention group where there is one."""

    groups: tuple[CacheGroup, ...]
    block_size: int
    """Tokens per block."""

    @property
    def bytes_per_block(self) -> int:
        """One block in every group."""
        return sum(group.bytes_per_block for group in self.groups)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in every group."""
        return self.bytes_per_block // self.block_size
