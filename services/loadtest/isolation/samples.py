"""What the isolation test sends, and what it sees of each answer. Values, and the protocol of who sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from services.loadtest.isolation.auc import Values

CONTROL_AUC = 0.95
"""By which the owner's own repeats have to be told, at least: else the test could not fail."""


class Party(StrEnum):
    """One of the two tenants."""

    OWNER = "owner"
    """Whose prompts are cached."""
    OTHER = "other"
    """Who must not notice."""


class Kind(StrEnum):
    """What was known of a prompt when it was sent."""

    OWN_FIRST = "own first"
    """The owner's, sent for the first time."""
    OWN_REPEAT = "own repeat"
    """The owner's, which it has cached: the control that a hit can be told at all."""
    CACHED_BY_OWNER = "cached by the owner"
    """The other tenant's first request of a prompt that the owner has cached."""
    FRESH = "fresh"
    """The other tenant's first request of a prompt that nobody has sent."""

    @property
    def party(self) -> Party:
        """Who sends it."""
        return Party.OWNER if self in (Kind.OWN_FIRST, Kind.OWN_REPEAT) else Party.OTHER


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


@dataclass(frozen=True, slots=True)
class Observation:
    """One request of the test."""

    variant: Variant
    kind: Kind
    answer: Answer


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
