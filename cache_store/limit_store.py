"""Limits that hold for a tenant over the whole cluster: what routers ask of the store that they share.

Places (requests in flight) are leased: a router has as many as it was granted until its lease runs out, and every ask
renews it. Tokens are taken: what a router has taken it may use at any time, and what it does not use it gives back.
One exchange carries the asks of a router for any number of tenants. The clock is the store's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from cache_store.domain import TenantId

RouterId = NewType("RouterId", str)
"""Of one router process; fresh per start."""

PLACES_LEASE_S = 5.0
"""Places of a router that has not asked for that long are free again, and the router counts no longer."""


class LimitStoreUnavailableError(Exception):
    """The store cannot be reached or does not answer."""


@dataclass(frozen=True, slots=True)
class PlaceAsk:
    """Places that a router needs for a tenant, in all: what it had before is replaced."""

    tenant: TenantId
    number: int
    """Of this router's asks for the tenant; one that arrives after a later one changes nothing."""
    limit: int
    held: int
    """In use: they cannot be taken from it."""
    needed: int
    """At least `held`: those that requests wait for are added."""
    wanted: int
    """Asked for now: with some to spare, or fewer than needed so that others get theirs; fewer than before gives places
    back."""


@dataclass(frozen=True, slots=True)
class PlaceGrant:
    """Places that a router has now."""

    granted: int
    """`held` at least, even where that exceeds the limit; beyond it only what is free."""
    others_idle: int
    """Places that other routers have and do not use, as far as they have told."""
    others_want: bool
    """Whether another router has fewer than it needs."""


@dataclass(frozen=True, slots=True)
class TokenAsk:
    """What a router takes for a tenant; see `cache_store/token_bucket.py`."""

    tenant: TenantId
    tokens_per_s: int
    spent: int
    """Used without having been taken; negative: given back."""
    costs: tuple[int, ...]
    """Of requests that wait to be admitted, in order."""
    spare: int
    """Tokens wanted beyond them, for requests to come."""


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """What a router was given."""

    num_admitted: int
    """Of the costs, from the first on."""
    spare: int
    level: float
    """Tokens that are left; at or below zero nobody is admitted."""


@dataclass(frozen=True, slots=True)
class StoreView:
    """What a router learns about the store itself."""

    num_routers: int
    """That asked lately, this one included."""
    birth: str
    """Another one than before: the store has lost its data."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Answers, in the order of the asks."""

    store: StoreView
    places: tuple[PlaceGrant, ...]
    tokens: tuple[TokenGrant, ...]


class LimitStore(Protocol):
    """What all routers of a cluster share."""

    async def exchange(self, router: RouterId, places: Sequence[PlaceAsk], tokens: Sequence[TokenAsk]) -> Exchange:
        """Raises LimitStoreUnavailableError; then any part of the asks may have been done."""
        ...
