"""One generation as the router knows it: what was asked, what came of it so far.

The values are the words that all other modules of the router share. Knows no grpc and no protobuf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cache_store.errors import WorkerLostError
from cache_store.registry import WorkerId
from cache_store.tokens import PackedTokens
from cache_store.usage import CachedTokens


class CacheMode(StrEnum):
    """What a request may do with the cache."""

    READ_WRITE = "read_write"
    READ_ONLY = "read_only"
    BYPASS = "bypass"


class FinishReason(StrEnum):
    """Why a sample ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    tokens: PackedTokens


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a chat."""

    role: str
    content: str


class TurnOpening(StrEnum):
    """How a rendered chat ends."""

    ASSISTANT = "assistant"
    """The assistant's turn is opened."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat, to be rendered with the model's template."""

    turns: tuple[ChatTurn, ...]
    opening: TurnOpening


Prompt = TokenPrompt | TextPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample, as asked; valid by construction of `services/router/validation.py`."""

    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    """None: the router assigns one."""
    max_tokens: int | None
    """None: what fits, at most a default."""
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    end_tokens: EndTokens
    n: int


class EndTokens(StrEnum):
    """Whether the model's end-of-sequence tokens end a sample."""

    STOP = "stop"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class CacheHints:
    """What helps a worker to keep what will be used again; changes no answer."""

    session_id: str = ""
    """Names the session inside its partition; empty: unknown."""
    session_end: bool = False
    """Nothing of the session follows."""
    ttl_s: float | None = None
    """Seconds without use after which the request's blocks are dropped; None: no bound."""


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """A valid request. `request_id` is None where the client chose none."""

    request_id: str | None
    model: str
    """Empty where the client named none."""
    prompt: Prompt
    sampling: Sampling
    cache_mode: CacheMode
    """`no_store` is part of it: nothing is stored in READ_ONLY."""
    partition: str
    hints: CacheHints = CacheHints()


@dataclass(frozen=True, slots=True)
class Timings:
    """Server-side times of one request, in seconds."""

    receive_unix_s: float
    route_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int
    """0, as all that follows, where the router ended the request before its worker did."""
    preempted_s: float = 0.0
    recompute_s: float = 0.0
    swap_s: float = 0.0
    recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The first token is there: the route will not change any more."""

    prompt_tokens: int
    cached: CachedTokens
    worker_id: WorkerId
    attempts: int
    degraded: bool
    seed: int
    num_samples: int
    timings: Timings
    """As far as they are known."""
    first_token_s: float
    """When it came, by the monotonic clock."""
    prefill_tokens_per_s: float = 0.0
    """That its worker computes, measured; 0: not yet."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one sample gained: text that became certain, tokens, and why it ended with them."""

    sample_index: int
    text: str
    tokens: PackedTokens
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Finished:
    """All samples ended; nothing follows."""

    timings: Timings
    written_tokens: int = 0
    """Of full blocks that were added to the cache, as far as its worker told."""


GenerationEvent = Started | Piece | Finished

Take = Callable[[GenerationEvent], None]
"""Takes the next event of a generation; at once, so that nothing waits for readers."""


@dataclass(frozen=True, slots=True)
class SampleSoFar:
    """A sample as far as it came; `finish` is None while it runs."""

    sample_index: int
    text: str
    tokens: PackedTokens
    finish: FinishReason | None


class GenerationLostError(WorkerLostError):
    """The worker went away after the first token; `samples` is what had been made.

    `retry_after_s`: after which another router may be asked, where it is this one that goes; None: none is better off.
    """

    def __init__(self, message: str, samples: tuple[SampleSoFar, ...], retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.samples = samples
        self.retry_after_s = retry_after_s
