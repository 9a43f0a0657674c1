"""What a workload hands to the driver: sessions of one turn or several. Values; nobody owns them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cache_store.tokens import PackedTokens


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: what it appends to all that was said before, answers included."""

    parts: tuple[PackedTokens, ...]
    """Parts that others share are one object."""
    max_tokens: int
    think_s: float = 0.0
    """From the end of the answer before to this request."""


@dataclass(frozen=True, slots=True)
class Session:
    """One request, or a conversation whose next turn waits for the answer."""

    name: str
    turns: tuple[Turn, ...]
    prefix_group: str | None = None
    """Sessions of a group begin with the same `prefix_tokens` tokens."""
    prefix_tokens: int = 0
    at_s: float | None = None
    """When a trace says that it starts."""
    first_turn: int = 0
    """Number of its first turn: traces have their turns as sessions of one turn each."""
    is_conversation: bool = False
    """Whether `name` is worth telling the server as the session's id."""

    def cut(self, num_turns: int) -> Session:
        """Its first turns."""
        if num_turns >= len(self.turns):
            return self
        return Session(
            self.name,
            self.turns[:num_turns],
            self.prefix_group,
            self.prefix_tokens,
            self.at_s,
            self.first_turn,
            self.is_conversation,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """What one tenant sends."""

    name: str
    sessions: Iterator[Session]
    """Endless but for traces; taken once."""
    requests_per_session: float = 1.0
    primes: tuple[PackedTokens, ...] = ()
    """Prefixes to be cached before the measured part, if priming is asked for."""
    notes: tuple[str, ...] = field(default=())
    """What was done to fit the model: prompts that were cut."""
