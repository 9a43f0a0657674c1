"""Which blocks of one tenant are worth keeping: the protocol of eviction policies.

A policy puts every use of blocks into a class and says what a block of a class is worth after a time without use. The
queues of blocks are not its business (`cache_store/eviction_queue.py`): only leaves leave, oldest of a class first.
Each tenant has an instance of its own in each pool: what one tenant does teaches nothing about another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

ClassId = NewType("ClassId", int)
"""Names a class inside one policy."""

INTERRUPTED = "interrupted"
"""Cancelled or failed."""

PREEMPTED = "preempted"
"""Goes on later, from where it was."""

WORTHLESS = -math.inf
"""Value of what is known to be never used again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, as far as it may tell what becomes of its blocks."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Of the prompt."""
    stop: str
    """Why it ended: `length`, INTERRUPTED, PREEMPTED, or `stop:` and the stop token's id; a trace may have its own."""
    session: bytes
    """Names its session inside its domain; empty: unknown."""
    session_end: bool
    """Its session goes on no further."""
    ttl_s: float
    """Seconds without use after which its blocks are dropped; infinite: no bound."""
    is_repeat: bool = False
    """The request has told before that it used its prompt: by another sample, or when it was preempted."""


class Use:
    """The last use of blocks: made once per request, shared by all blocks that the request let go of."""

    __slots__ = ("class_id", "expires_s", "num_tokens", "order", "place", "session", "time_s", "turn")

    def __init__(
        self,
        time_s: float,
        class_id: ClassId,
        num_tokens: int = 0,
        turn: int = 1,
        session: bytes = b"",
        expires_s: float = math.inf,
    ) -> None:
        self.time_s = time_s
        """When the request let go of the blocks."""
        self.class_id = class_id
        self.num_tokens = num_tokens
        """Prompt and answer of the request."""
        self.turn = turn
        """1 for the first request of a session, as far as it can be told."""
        self.session = session
        self.expires_s = expires_s
        self.place = 0
        """Of the request among its tenant's, by which curves of reuse tell uses apart; 0: none."""
        self.order = 0
        """Counts up with each use in a pool, which sets it: tells apart what happened at the same time."""


class UsedBlock(Protocol):
    """What a policy may know of a block."""

    digest: bytes
    """Names its content and all that comes before it."""
    shared: bool
    """Whether several lines of blocks ever branched off it or below it."""
    use: Use | None
    """Its last before this one; None: it is new."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive blocks of a request that get the same use."""

    use: Use
    end: int
    """How many of the request's blocks lie in this part and those before it."""


class EvictionPolicy(Protocol):
    """Values blocks of one tenant in one pool. Times are of one monotonic clock, in seconds."""

    def unknown_use(self, now_s: float) -> Use:
        """The use of blocks that are let go before anything is known of them."""
        ...

    def uses(
        self,
        outcome: Outcome,
        blocks: Sequence[UsedBlock],
        num_prompt_blocks: int,
        now_s: float,
    ) -> Sequence[Part]:
        """Classifies a request that lets go of its blocks, one part after the other, until all blocks have a use.

        The first `num_prompt_blocks` of `blocks`, or all, lie within its prompt.
        """
        ...

    def value(self, class_id: ClassId, age_s: float) -> float:
        """What a block is worth whose last use was `age_s` ago; the least goes first."""
        ...
