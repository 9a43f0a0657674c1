"""Knows what each tenant has sent, and says of each answer how much of it the tenant may have cached itself.

Random prompts of a tenant begin alike by chance now and then, by a token or two, and those are cached rightly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.loadtest.isolation.samples import Answer, Party, Prober

_LONGEST_CHANCE = 8
"""Tokens that no two random prompts begin with alike."""


class OwnTokens:
    """Implements `services.loadtest.isolation.samples.Prober` over another one."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self._sent: dict[Party, set[tuple[int, ...]]] = {party: set() for party in Party}
        """Whole prompts, and what they begin with."""

    async def ask(self, party: Party, prompt: Sequence[int]) -> Answer:
        """See Prober."""
        asked, sent = tuple(prompt), self._sent[party]
        own_tokens = len(asked) if asked in sent else self._begun(asked, sent)
        sent.add(asked)
        sent.update(asked[:length] for length in range(1, _LONGEST_CHANCE + 1))
        return replace(await self._prober.ask(party, prompt), own_tokens=own_tokens)

    @staticmethod
    def _begun(asked: tuple[int, ...], sent: set[tuple[int, ...]]) -> int:
        lengths = range(1, _LONGEST_CHANCE + 1)
        return max((length for length in lengths if asked[:length] in sent), default=0)
