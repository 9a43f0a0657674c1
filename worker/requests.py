"""What goes into an engine and what comes out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from cache_store.domain import NO_ADAPTER, AdapterDigest, Domain
from cache_store.errors import StemcacheError
from cache_store.tokens import PackedTokens
from cache_store.usage import CachedTokens
from worker.peers import PeerHint
from worker.sampling import SamplingParams

RequestKey = NewType("RequestKey", int)
"""Names a request inside one worker; assigned by the edge, never the client's id, so that no two callers can meet."""


class CacheMode(StrEnum):
    """What a request may do with the cache."""

    READ_WRITE = "read_write"
    READ_ONLY = "read_only"
    BYPASS = "bypass"
    PURGED = "purged"
    """As bypass, and nothing of it stays when it ends: its domain was purged before it came, or may have been."""


class Finish(StrEnum):
    """Why a sample ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request with verified domain and valid parameters."""

    key: RequestKey
    domain: Domain
    prompt: PackedTokens
    sampling: SamplingParams
    num_samples: int
    cache_mode: CacheMode
    session: bytes = b""
    """Names the session that it belongs to, for the eviction policy; empty: unknown."""
    session_end: bool = False
    """Nothing of the session follows."""
    ttl_s: float = math.inf
    """Seconds without use after which its blocks are dropped."""
    adapter: AdapterDigest = NO_ADAPTER
    """The one of the domain's KV format."""
    peer: PeerHint | None = None
    """Another worker that has more of the prompt, perhaps."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request was scheduled for the first time."""

    key: RequestKey
    cached: CachedTokens
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens of one sample; `finish` with its last ones."""

    key: RequestKey
    sample_index: int
    token_ids: tuple[int, ...]
    finish: Finish | None


@dataclass(frozen=True, slots=True)
class Finished:
    """All samples ended; nothing follows. Times are of this worker, in seconds."""

    key: RequestKey
    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int
    preempted_s: float = 0.0
    """From each preemption to the next scheduled step, added up; part of `prefill_s` or `decode_s`."""
    recompute_s: float = 0.0
    """Its share of the steps that computed again what preemptions had thrown away."""
    recomputed_tokens: int = 0
    written_tokens: int = 0
    """Of full blocks that it added to the cache."""
    swap_s: float = 0.0
    """Waiting for blocks from a lower tier; 0 without one."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended with an error; nothing follows."""

    key: RequestKey
    error: StemcacheError


EngineOutput = Started | Generated | Finished | Failed
