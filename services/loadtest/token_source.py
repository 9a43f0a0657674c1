"""Synthetic tokens: the same for the same seed in every process and on every machine, whatever Python's hash() does.

Tokens are drawn from an alphabet of ordinary ones, by a counter-based generator whose key is an xxHash of names. A run
draws `fresh` tokens in order; a `block` belongs to a symbol (a hash id of a trace) and is the same whenever it is asked
for. Keeps the place in the stream of fresh tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import xxhash

from cache_store.tokens import PackedTokens

_MAX_BLOCKS = 1 << 17


def stable_seed(*names: object) -> int:
    """64 bits out of names and numbers: not `hash()`, which differs from process to process."""
    return xxhash.xxh3_64_intdigest("\x1f".join(map(str, names)).encode())


def stable_rng(*names: object) -> np.random.Generator:
    """A generator of its own for these names."""
    return np.random.Generator(np.random.Philox(key=stable_seed(*names)))


class TokenSource:
    """One tenant's tokens. Not for several threads."""

    def __init__(self, alphabet: Sequence[int], seed: int, stream: str) -> None:
        """`stream` keeps tenants of one seed apart."""
        assert alphabet, "an alphabet has tokens"
        self._alphabet = np.asarray(alphabet, dtype="<u4")
        self._names = (seed, stream)
        self._fresh = np.random.Philox(key=stable_seed("fresh", *self._names))
        self.block = lru_cache(_MAX_BLOCKS)(self._block)
        """Tokens of a symbol: `block(symbol, num_tokens)`."""

    def fresh(self, num_tokens: int) -> PackedTokens:
        """Tokens that nothing else has."""
        return self._tokens(self._fresh, num_tokens)

    def _block(self, symbol: int, num_tokens: int) -> PackedTokens:
        key = stable_seed("block", *self._names, symbol)
        return self._tokens(np.random.Philox(key=key), num_tokens)

    def _tokens(self, bits: np.random.Philox, num_tokens: int) -> PackedTokens:
        raw = bits.random_raw(num_tokens)  # its order is part of the generator's definition, unlike `integers`
        return PackedTokens(self._alphabet[raw % np.uint64(len(self._alphabet))].tobytes())
