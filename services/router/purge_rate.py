"""How often a tenant may purge through this router: each purge is a write of the control data, which all tenants share.

Owned by one event loop; holds a level per tenant that has purged lately.
"""

from __future__ import annotations

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.errors import LimitExceededError

MAX_BURST = 20
"""Purges at once of a tenant that has not purged for a while."""

RATE = 1.0
"""Purges per second over a while."""

_MAX_LEVELS = 1_024
"""Beyond that many, levels that have drained are forgotten."""


class PurgeRate:
    """A level per tenant: each purge raises it by one, time drains it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._levels: dict[TenantId, tuple[float, float]] = {}
        """Level, and when it was that."""

    def take(self, tenant: TenantId) -> None:
        """Notes a purge. Raises LimitExceededError where the tenant has purged too often."""
        now_s = self._clock.monotonic_s()
        level = self._level(tenant, now_s) + 1
        if level > MAX_BURST:
            raise LimitExceededError(
                "purges",
                f"your tenant may purge {MAX_BURST} times at once and then {RATE:g} times a second; wait, or purge "
                "everything at once",
                (level - MAX_BURST) / RATE,
            )
        if len(self._levels) >= _MAX_LEVELS:
            self._levels = {each: level for each, level in self._levels.items() if self._level(each, now_s) > 0}
        self._levels[tenant] = (level, now_s)

    def _level(self, tenant: TenantId, now_s: float) -> float:
        level, at_s = self._levels.get(tenant, (0.0, now_s))
        return max(0.0, level - (now_s - at_s) * RATE)
