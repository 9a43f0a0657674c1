"""What the server answers, as values that know nothing of protobuf."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sample ended."""

    UNFINISHED = "unfinished"
    """It did not end: part of an aborted generation."""
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """A reason that this client's version does not know."""


@dataclass(frozen=True, slots=True)
class CachedByTier:
    """Reused tokens by the tier where they lay."""

    device_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    peer_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were reused."""
    computed_tokens: int
    """Prompt tokens computed for this request."""
    cached_by_tier: CachedByTier = field(default_factory=CachedByTier)
    written_tokens: int = 0
    """Of full blocks that the request added to the cache; 0 before its end."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Server-side times of one request."""

    receive_unix_s: float
    route_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int
    preempted_s: float
    """It stood still because its blocks were given to others; part of `prefill_s` or `decode_s`."""
    recompute_s: float
    """To compute again what preemptions had thrown away; part of `prefill_s` or `decode_s`."""
    swap_s: float
    """It waited for its blocks to come back from a lower tier."""
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class RouteCandidate:
    """A worker that a request could have gone to; times are estimates."""

    worker_id: str
    matched_tokens: int
    """Prompt tokens that the index promised there."""
    queue_s: float
    prefill_s: float
    recompute_s: float
    """What computing again costs others."""
    cost_s: float
    """The sum of the three."""


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """Why a request went where it went, and reused what it did."""

    reason: str
    reuse: str
    uncached_tokens: int
    candidates: tuple[RouteCandidate, ...]
    """Best first by what decided."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request ran."""

    worker_id: str
    degraded: bool
    """Routing or reuse was less than usual."""
    attempts: int
    decision: RouteDecision | None = None
    """Why there; told to the operator only."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sample."""

    sample_index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Generation:
    """Result of one request."""

    request_id: str
    completions: tuple[Completion, ...]
    usage: Usage
    timings: Timings
    route: Route
    seed: int

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.completions[0].text


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """First event of a stream: a worker admitted the request."""

    request_id: str
    usage: Usage
    route: Route
    seed: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens of one sample since its last event; the text may lag behind them by an incomplete character."""

    request_id: str
    sample_index: int
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampleFinish:
    """How one sample ended."""

    sample_index: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class GenerationFinished:
    """Last event of a stream."""

    request_id: str
    samples: tuple[SampleFinish, ...]
    usage: Usage
    timings: Timings


GenerationEvent = GenerationStarted | Delta | GenerationFinished
"""One event of a stream."""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """An encoded prompt."""

    token_ids: tuple[int, ...]
    num_blocks: int
    """Full cache blocks that the tokens make."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model that can be called, and the geometry of its cache."""

    name: str
    block_size: int
    max_model_len: int
    kv_bytes_per_token: int
    vocab_size: int
    base_model: str = ""
    """Of an adapter: the model that it adapts."""
