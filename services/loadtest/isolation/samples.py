"""What the isolation test sends, and what it sees of each answer. Values, and the protocol of who sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from services.loadtest.isolation.auc import Values

CONTROL_AUC = 0.95
"""By which a tenant's own repeats have to be told, at least: else the test could not fail."""


class Party(StrEnum):
    """One of the two tenants. Each sends what the other has cached, and has cached what the other sends."""

    LEFT = "left"
    RIGHT = "right"

    @property
    def other(self) -> Party:
        """The tenant that must not notice."""
        return Party.RIGHT if self is Party.LEFT else Party.LEFT


class Kind(StrEnum):
    """What was known of a prompt when a tenant sent it."""

    FIRST = "first"
    """Nobody has sent it before."""
    REPEAT = "own repeat"
    """The same tenant has cached it: the control that a hit can be told at all."""
    CROSSED = "cached by the other tenant"
    """The other tenant has cached it, and this one has never sent it."""


class Variant(StrEnum):
    """What else goes on."""

    QUIET = "one request at a time"
    LOADED = "both tenants at once, under load"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tenant sees of one of its requests."""

    ttft_s: float
    """From the send to the first token."""
    prompt_tokens: int
    cached_tokens: int
    own_tokens: int = 0
    """Leading tokens that this tenant has sent before, by chance or as a repeat: what may be cached for it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One request of the test."""

    variant: Variant
    party: Party
    kind: Kind
    answer: Answer

    @property
    def leaked_tokens(self) -> int:
        """Cached tokens that this tenant was told of and that were not its own."""
        return max(0, self.answer.cached_tokens - self.answer.own_tokens)


class Prober(Protocol):
    """Sends requests as either tenant."""

    async def ask(self, party: Party, prompt: Sequence[int]) -> Answer:
        """One request that makes one token. Raises StemcacheError where it is not answered."""
        ...


def ttfts(observations: Sequence[Observation], kind: Kind) -> Values:
    """Times of one kind, in seconds."""
    return np.array([each.answer.ttft_s for each in observations if each.kind is kind])


def cached(observations: Sequence[Observation], kind: Kind) -> Values:
    """Cached tokens of one kind."""
    return np.array([float(each.answer.cached_tokens) for each in observations if each.kind is kind])
