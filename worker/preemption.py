"""Who gives up blocks or places for whom. Pure.

A tenant is *entitled* to the blocks that it is guaranteed, or to its part by weight among the tenants with work where
that is more; to places by weight. Somebody who runs out of blocks takes them from the tenants above their entitlement,
the one with most service first, else from itself; a tenant below its guarantee from whoever is above theirs; one at its
own maximum from itself only. Of a tenant the youngest request goes first, and no request more than `MAX_PREEMPTIONS`
times: it starts again only with all its blocks reserved and needs none of anybody afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cache_store.domain import TenantId
from worker.sequence import ActiveRequest

MAX_PREEMPTIONS = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running request that may be preempted."""

    request: ActiveRequest
    num_blocks: int
    """That nobody else holds."""
    num_places: int


@dataclass(frozen=True, slots=True)
class Party:
    """A tenant with work."""

    tenant: TenantId
    service_s: float
    """Its virtual token counter."""
    num_blocks: int
    """Held."""
    num_places: int
    guaranteed: int
    fair_blocks: float
    """The pool's part that its weight stands for among all parties."""
    fair_places: float
    candidates: tuple[Candidate, ...]
    """Youngest first."""

    @property
    def entitled(self) -> float:
        """Blocks that nobody takes for somebody above its guarantee."""
        return max(self.guaranteed, self.fair_blocks)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a sequence would hold, and what of it is missing."""

    num_blocks: int
    num_places: int
    missing_blocks: int
    missing_places: int
    is_own_limit: bool
    """Blocks are missing because its tenant may have no more, whatever the others do."""


def yields_to_growth(asking: Party, others: Iterable[Party], room: int) -> ActiveRequest:
    """Who is preempted where a running sequence of `asking` needs one more block, and `room` is left to its maximum.

    The request of the sequence is one of the candidates of `asking`, so somebody always is.
    """
    if room < 1:
        return asking.candidates[0].request
    if asking.num_blocks < asking.guaranteed:
        above = [party for party in others if party.num_blocks > party.guaranteed]
    else:
        above = [party for party in (asking, *others) if party.num_blocks > party.entitled]
    above = [party for party in above if party.candidates]
    payer = max(above, key=lambda party: (party.service_s, party.num_blocks), default=asking)
    return payer.candidates[0].request


def makes_way(asking: Party, others: Iterable[Party], demand: Demand) -> tuple[ActiveRequest, ...]:
    """Who is preempted so that a waiting sequence can start; nobody where it has to wait for others to end.

    Only for what the tenant is entitled to, so that two tenants never preempt each other in turn.
    """
    if demand.is_own_limit:
        return ()
    within_guarantee = asking.num_blocks + demand.num_blocks <= asking.guaranteed
    if demand.missing_blocks and not within_guarantee and asking.num_blocks + demand.num_blocks > asking.entitled:
        return ()
    if demand.missing_places and asking.num_places + demand.num_places > asking.fair_places:
        return ()
    search = _Search(demand.missing_blocks, demand.missing_places)
    for party in sorted(others, key=lambda party: (-party.service_s, -party.num_blocks)):
        search.visit(party, party.guaranteed if within_guarantee else party.entitled)
    return tuple(search.chosen) if search.is_done else ()


class _Search:
    def __init__(self, num_blocks: int, num_places: int) -> None:
        self._num_blocks = num_blocks
        self._num_places = num_places
        self.chosen: list[ActiveRequest] = []

    @property
    def is_done(self) -> bool:
        return self._num_blocks <= 0 and self._num_places <= 0

    def visit(self, party: Party, kept_blocks: float) -> None:
        """Takes the youngest as long as the party has more than it keeps of something that is missing."""
        num_blocks, num_places = party.num_blocks, party.num_places
        for candidate in party.candidates:
            helps = self._num_blocks > 0 and num_blocks > kept_blocks
            if self.is_done or not (helps or (self._num_places > 0 and num_places > party.fair_places)):
                return
            self.chosen.append(candidate.request)
            self._num_blocks -= min(candidate.num_blocks, max(0, num_blocks - party.guaranteed))
            self._num_places -= candidate.num_places
            num_blocks -= candidate.num_blocks
            num_places -= candidate.num_places
