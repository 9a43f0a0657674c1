"""What the driver needs of a server under load. Knows no protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cache_store.tokens import PackedTokens, count
from services.loadtest.records import OK, ServerTimes, TierTokens

NO_TIERS = TierTokens()


@dataclass(frozen=True, slots=True)
class Call:
    """One request to send."""

    prompt: PackedTokens
    max_tokens: int
    session: str
    """Told to the server as the conversation's id; empty: none."""
    request_id: str


@dataclass(slots=True)
class Answer:
    """What has come of a call so far; filled as it comes, so that it is there when the call is ended from outside."""

    arrivals_s: list[float] = field(default_factory=list)
    """By the clock that the target was made with, of each message with tokens."""
    tokens: list[bytes] = field(default_factory=list)
    """Packed, of each of those messages; of a server that sends text only, the whole at the end."""
    counts: list[int] = field(default_factory=list)
    """Tokens of each message, where `tokens` does not tell."""
    status: str = ""
    """Empty until it ended: records.OK, a code's name, HTTP_429."""
    error: str = ""
    """Ours, or a code; what a server says may hold the prompt."""
    words: str = ""
    """What the server said of a failure, for a terminal: it is never written."""
    ended_s: float | None = None
    """By the clock of `arrivals_s`, where the answer was whole before the call had ended."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cached_by_tier: TierTokens = NO_TIERS
    written_tokens: int = 0
    worker: str = ""
    attempts: int = 1
    degraded: bool = False
    server: ServerTimes | None = None

    @property
    def completed(self) -> bool:
        """Came to its end."""
        return self.status == OK

    @property
    def packed(self) -> PackedTokens:
        """All tokens of the answer."""
        return PackedTokens(b"".join(self.tokens))

    @property
    def num_tokens(self) -> int:
        """That arrived."""
        return count(self.packed)


class Target(Protocol):
    """One tenant's way to the server."""

    async def send(self, call: Call, answer: Answer) -> None:
        """Sends and fills `answer` to its end. A failure is its status; only cancellation is raised."""

    async def close(self) -> None:
        """Gives its connections back."""


class Tokenizer(Protocol):
    """The served model's own tokenizer."""

    async def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of a text, without any that open a prompt."""

    async def decode(self, tokens: PackedTokens) -> str:
        """Text of tokens."""
