"""The course of the isolation test: rounds in an order in which neither drift nor a place in it can pass for a leak.

In each round either tenant sends a prompt that nobody has sent, and the one that the other sent first in the round
before. A coin decides which of the two a tenant begins with, and the other one begins with the other kind: slow and
fast minutes of the machine, and first and last places of a round, meet both kinds alike. In some rounds, between the
two, each repeats its own prompt of the round before. One request goes out at a time, or either tenant sends its own
without waiting for the other's. It ends early where a leak is certain. Owns the observations of one test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from services.loadtest.isolation.lanes import run_lanes
from services.loadtest.isolation.power import Power
from services.loadtest.isolation.prompts import FreshPrompts
from services.loadtest.isolation.samples import Kind, Observation, Party, Prober, Variant

_WARM_UP_ROUNDS = 2

Lane = Sequence[tuple[Kind, Sequence[int]]]
"""What one tenant sends in a round, in order."""


@dataclass(frozen=True, slots=True)
class CoursePlan:
    """What to send."""

    num_rounds: int
    """In each variant; in each there are two requests of either kind."""
    control_every: int
    """Rounds from one with repeats to the next."""
    num_tokens: int
    """Of each prompt."""

    @property
    def num_requests(self) -> int:
        """In each variant."""
        return len(Party) * (2 * self.num_rounds + -(-self.num_rounds // self.control_every))

    @staticmethod
    def of(power: Power, num_tokens: int) -> CoursePlan:
        """Enough rounds for those samples."""
        num_rounds = -(-power.num_samples // len(Party))
        return CoursePlan(num_rounds, max(1, num_rounds * len(Party) // power.num_controls), num_tokens)


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
            await self._rounds(variant)

    @property
    def leaked(self) -> bool:
        """Whether a tenant was told of tokens that it had not cached: then there is nothing left to measure."""
        return any(each.leaked_tokens for each in self.observations[-3 * len(Party) :])

    async def _rounds(self, variant: Variant) -> None:
        begin = len(self.observations)
        known = await self._first_prompts(variant)
        for _ in range(_WARM_UP_ROUNDS):
            known = await self._round(variant, known, 0)
        if not any(each.leaked_tokens for each in self.observations[begin:]):
            del self.observations[begin:]
        for done in range(self._plan.num_rounds):
            if self.leaked:
                return
            known = await self._round(variant, known, done)
            self._progress(variant, done + 1, self._plan.num_rounds)

    async def _first_prompts(self, variant: Variant) -> Mapping[Party, tuple[int, ...]]:
        known = self._fresh()
        for party, prompt in known.items():
            await self._send(variant, party, [(Kind.FIRST, prompt)])
        return known

    async def _round(
        self, variant: Variant, known: Mapping[Party, Sequence[int]], number: int
    ) -> Mapping[Party, tuple[int, ...]]:
        """Sends one round; the prompts that either tenant has sent first in it."""
        fresh, begins_fresh = self._fresh(), self._prompts.one_of(tuple(Party))
        lanes = {}
        for party in Party:
            pair: list[tuple[Kind, Sequence[int]]] = [(Kind.FIRST, fresh[party]), (Kind.CROSSED, known[party.other])]
            first, last = pair if party is begins_fresh else reversed(pair)
            control = [] if number % self._plan.control_every else [(Kind.REPEAT, known[party])]
            lanes[party] = [first, *control, last]
        await run_lanes(variant, lambda party: self._send(variant, party, lanes[party]))
        return fresh

    def _fresh(self) -> dict[Party, tuple[int, ...]]:
        return {party: self._prompts.draw(self._plan.num_tokens) for party in Party}

    async def _send(self, variant: Variant, party: Party, lane: Lane) -> None:
        for kind, prompt in lane:
            answer = await self._prober.ask(party, prompt)
            self.observations.append(Observation(variant, party, kind, answer))
