"""Token ids packed as little-endian uint32: the form in which they are hashed, compared, stored and sent."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import NewType

from cache_store.errors import InvalidRequestError

PackedTokens = NewType("PackedTokens", bytes)
"""Token ids, four bytes each, little-endian."""

TOKEN_BYTES = 4

if array("I").itemsize != TOKEN_BYTES:
    raise ImportError("this platform's C unsigned int is not 32 bits wide")


def pack(token_ids: Iterable[int]) -> PackedTokens:
    """Packs token ids in 0 ... 2**32 - 1; OverflowError outside."""
    values = array("I", token_ids)
    if sys.byteorder == "big":
        values.byteswap()
    return PackedTokens(values.tobytes())


def unpack(packed: bytes) -> list[int]:
    """Token ids of `packed`. Raises InvalidRequestError where its length is no multiple of four."""
    if len(packed) % TOKEN_BYTES:
        raise InvalidRequestError("token_ids.packed", f"{len(packed)} bytes are no whole number of 4-byte token ids")
    values = array("I")
    values.frombytes(packed)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def count(packed: bytes) -> int:
    """Number of tokens."""
    return len(packed) // TOKEN_BYTES


def part(packed: bytes, start: int, stop: int) -> PackedTokens:
    """Tokens `start` to `stop` (exclusive), in tokens."""
    return PackedTokens(packed[start * TOKEN_BYTES : stop * TOKEN_BYTES])


def common_prefix(a: bytes, b: bytes) -> int:
    """Number of leading tokens that are equal."""
    limit = min(len(a), len(b)) // TOKEN_BYTES * TOKEN_BYTES
    if a[:limit] == b[:limit]:
        return limit // TOKEN_BYTES
    low, high = 0, limit // TOKEN_BYTES  # equal up to low, different within high
    while low + 1 < high:
        middle = (low + high) // 2
        if a[low * TOKEN_BYTES : middle * TOKEN_BYTES] == b[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle
    return low
