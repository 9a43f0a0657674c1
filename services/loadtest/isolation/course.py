"""The course of the isolation test: rounds of four requests in an order in which no drift can pass for a leak.

In each round the owner sends a prompt and repeats it; then the other tenant sends that prompt, and one that nobody has
sent, in an order that a coin decides. Slow and fast minutes of the machine meet both alike. It ends early where a leak
is certain. Owns the observations of one test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.loadtest.isolation.load import surroundings
from services.loadtest.isolation.prompts import FreshPrompts
from services.loadtest.isolation.samples import Kind, Observation, Party, Prober, Variant

_WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class CoursePlan:
    """What to send."""

    num_rounds: int
    """In each variant."""
    num_tokens: int
    """Of each prompt."""


Progress = Callable[[Variant, int, int], None]
"""Told the rounds that are done, and of how many."""


class Course:
    """One test."""

    def __init__(self, prober: Prober, prompts: FreshPrompts, plan: CoursePlan, progress: Progress) -> None:
        self._prober = prober
        self._prompts = prompts
        self._plan = plan
        self._progress = progress
        self.observations: list[Observation] = []
        """In the order in which they were made."""

    async def run(self, variants: Sequence[Variant]) -> None:
        """All rounds. Raises StemcacheError where a request is not answered."""
        for variant in variants:
            async with surroundings(variant, self._prober, self._prompts, self._plan.num_tokens):
                await self._rounds(variant)

    @property
    def leaked(self) -> bool:
        """Whether the other tenant was told of cached tokens: then there is nothing left to measure."""
        return any(each.kind.party is Party.OTHER and each.answer.cached_tokens for each in self.observations[-4:])

    async def _rounds(self, variant: Variant) -> None:
        for _ in range(_WARM_UP_ROUNDS):
            await self._round(variant)
        if not self.leaked:
            del self.observations[-4 * _WARM_UP_ROUNDS :]
        for done in range(self._plan.num_rounds):
            if self.leaked:
                return
            await self._round(variant)
            self._progress(variant, done + 1, self._plan.num_rounds)

    async def _round(self, variant: Variant) -> None:
        known, fresh = self._prompts.draw(self._plan.num_tokens), self._prompts.draw(self._plan.num_tokens)
        others = [(Kind.CACHED_BY_OWNER, known), (Kind.FRESH, fresh)]
        if self._prompts.heads():
            others.reverse()
        for kind, prompt in [(Kind.OWN_FIRST, known), (Kind.OWN_REPEAT, known), *others]:
            answer = await self._prober.ask(kind.party, prompt)
            self.observations.append(Observation(variant, kind, answer))
