"""What a caller asks for, as values. Defaults that the server assigns are absent here (None), not repeated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat."""

    role: str
    """`system`, `user`, `assistant`, or what the model's template knows."""
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat, rendered by the server with the model's own template."""

    messages: tuple[ChatMessage, ...]
    """Oldest first; at least one."""

    @classmethod
    def of(cls, user: str, system: str | None = None) -> Chat:
        """One user message, after a system message where one is given."""
        opening = () if system is None else (ChatMessage("system", system),)
        return cls((*opening, ChatMessage("user", user)))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids, taken as they are."""

    token_ids: tuple[int, ...]


Prompt = str | Chat | Tokens
"""Plain text, a chat, or token ids."""


class CacheMode(StrEnum):
    """What a request may do with the cache of its tenant."""

    READ_WRITE = "read_write"
    READ_ONLY = "read_only"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn and when a sample ends; None leaves it to the server's documented default."""

    temperature: float | None = None
    """0, the default, is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    """Where None it follows from the request's id, and is returned."""
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool | None = None
    num_samples: int | None = None


@dataclass(frozen=True, slots=True)
class CacheHints:
    """What helps the cache to keep what will be used again; changes no answer."""

    session_id: str = ""
    """Names the conversation or agent run that the request belongs to."""
    session_end: bool = False
    """The session ends with this request."""
    no_store: bool = False
    """Nothing of the request is stored."""
    ttl_s: float | None = None
    """Seconds without use after which its blocks are dropped, 1 s to 30 days; None: no bound."""


NO_HINTS = CacheHints()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation."""

    prompt: Prompt
    sampling: Sampling = Sampling()
    model: str = ""
    """Empty where the cluster serves exactly one."""
    cache_mode: CacheMode = CacheMode.READ_WRITE
    partition: str = ""
    """Space of its own inside the tenant; empty is the common one."""
    request_id: str = ""
    """Empty: the client makes one, so that its own retries attach to the same request."""
    hints: CacheHints = NO_HINTS
