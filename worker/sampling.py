"""What a sample is drawn from, in numbers only; drawing on logits is the runner's (`worker/torch_runner/sampler.py`).

Randomness is counter-based: the number used for a token is a function of (seed, sample index, position) alone. So a
sample is the same after preemption, on another worker, or beside other requests.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_COUNTER = struct.Struct("<QIQ")
_MANTISSA_BITS = 53


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the samples of a request are drawn and when they end. Valid by construction of `worker/rpc.py`."""

    temperature: float
    """0 is greedy."""
    top_p: float
    """In (0, 1]."""
    top_k: int
    """0 keeps all."""
    seed: int
    """Unsigned 64 bit."""
    max_tokens: int
    """At least 1."""
    min_tokens: int
    """Stop tokens are not drawn before that many tokens."""
    stop_token_ids: tuple[int, ...]
    """A sample ends with the first of them, which is part of it."""


def uniform(seed: int, sample_index: int, position: int) -> float:
    """A number in [0, 1), equidistributed over its arguments. `position` is that of the token to be drawn."""
    data = hashlib.blake2b(_COUNTER.pack(seed, sample_index, position), digest_size=8, person=b"sc-sample").digest()
    return (int.from_bytes(data, "little") >> (64 - _MANTISSA_BITS)) / (1 << _MANTISSA_BITS)
