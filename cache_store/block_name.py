"""What the bytes of a block are the keys and values of: compared wherever bytes come from another tier."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache_store.tokens import PackedTokens


@dataclass(frozen=True, slots=True)
class BlockName:
    """Bytes under another name must not be used in its place. A digest alone decides nothing: tokens do."""

    root: bytes = field(repr=False)
    """Domain root, 32 secret bytes."""
    parent: bytes
    """Digest of the block before it; the domain root for the first of a prompt."""
    digest: bytes
    tokens: PackedTokens = field(repr=False)
    """Of this block alone."""
    number: int
    """Of its node in the worker's trees, never used for another: tells apart blocks whose digests and tokens are equal
    because the digests of what precedes them collide."""
