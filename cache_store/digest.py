"""Chained block digests: hints that name a block together with everything before it.

digest = XXH3-128(parent digest ‖ little-endian uint32 token ids); the first parent is the domain root. XXH3 is not
collision-resistant, so a digest proposes and tokens decide: see `cache_store/block_pool.py`. The values are part of
the index's format; golden vectors in the tests hold them still.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import iter_unpack
from typing import NewType, cast

import xxhash

from cache_store.domain import Domain
from cache_store.tokens import TOKEN_BYTES, PackedTokens

Digest = NewType("Digest", bytes)
"""16 bytes, big-endian canonical form of XXH3-128."""

DIGEST_BYTES = 16

Hasher = Callable[[bytes], bytes]
"""Bytes to 16 bytes. A parameter, so that tests can put in one that collides."""

xxh3_128: Hasher = xxhash.xxh3_128_digest


def block_digest(parent: bytes, tokens: PackedTokens, hasher: Hasher = xxh3_128) -> Digest:
    """Digest of one full block. `parent` is the digest of the block before it, or the domain root."""
    return Digest(hasher(parent + tokens))


def chain(domain: Domain, tokens: PackedTokens, block_size: int, hasher: Hasher = xxh3_128) -> list[Digest]:
    """Digests of all full blocks of `tokens`, parent first; a partial last block has none."""
    width = block_size * TOKEN_BYTES
    full = tokens[: len(tokens) // width * width]
    parent: bytes = domain.root
    blocks = iter_unpack(f"{width}s", full)  # half the time of slices
    digests = [parent := hasher(parent + block) for (block,) in blocks]
    return cast(list[Digest], digests)
