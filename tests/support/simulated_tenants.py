"""A system in virtual time, as good or as leaky as a test wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np

from services.client.errors import ApiUnavailableError, ErrorDetails
from services.loadtest.isolation.samples import Answer, Party


@dataclass
class SimulatedSystem:
    """First requests take about `token_s` per token, hits a step; both scatter by `noise`."""

    seed: int = 1
    vocab_size: int = 32_000
    token_s: float = 0.0005
    step_s: float = 0.004
    noise: float = 0.15
    reuses_beginnings: bool = False
    """Whether what two prompts of a tenant begin with is reused, down to a token."""
    leak: float = 0.0
    """Part of the requests that reuse what the other tenant has cached."""
    leaks_to: tuple[Party, ...] = tuple(Party)
    tells_leaks: bool = True
    """Whether cached tokens say so."""
    caches: bool = True
    restless_after: int | None = None
    """Requests after which a step takes 0.05 s and times scatter by a quarter."""
    drift: float = 0.0
    """By which everything becomes slower with each request."""
    first_of_pair: float = 1.0
    """By how much every other request is slower, whatever it asks."""
    fails_after: int | None = None
    held: dict[Party, set[tuple[int, ...]]] = field(default_factory=lambda: {party: set() for party in Party})
    begun: dict[Party, set[tuple[int, ...]]] = field(default_factory=lambda: {party: set() for party in Party})
    num_requests: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    async def ask(self, party: Party, prompt: Sequence[int]) -> Answer:
        self.num_requests += 1
        if self.fails_after is not None and self.num_requests > self.fails_after:
            raise ApiUnavailableError(grpc.StatusCode.UNAVAILABLE, "nobody is there", ErrorDetails())
        tokens = tuple(prompt)
        own = self.caches and tokens in self.held[party]
        others = any(tokens in held for held in self.held.values())
        leaked = self.caches and others and not own and party in self.leaks_to and self._rng.random() < self.leak
        self.held[party].add(tokens)
        if self.num_requests == self.restless_after:
            self.step_s, self.noise = 0.05, 0.25
        usual_s = self.step_s + (0.0 if own or leaked else self.token_s * len(tokens))
        ttft_s = usual_s * self._rng.lognormal(0.0, self.noise) * (1.0 + self.drift * self.num_requests)
        ttft_s *= self.first_of_pair if self.num_requests % 2 else 1.0
        hidden = leaked and not self.tells_leaks
        cached = len(tokens) - 1 if (own or leaked) and not hidden else 0
        if self.reuses_beginnings and not cached:
            cached = int(tokens[:1] in self.begun[party])
            self.begun[party].add(tokens[:1])
        return Answer(ttft_s, len(tokens), cached)
