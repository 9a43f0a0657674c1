"""Virtual token counters: what service each tenant has had, in seconds of measured cost, for its weight.

After "Fairness in serving large language models" (Sheng et al., OSDI 2024): who has the least is served next; a tenant
that comes back with work is lifted to the least of those that have work, so that nobody saves up credit by being idle;
nobody's debt is forgiven. *Backlogged* is a tenant with prompts to compute: those that wait and those that run.
Pure; owned by the scheduler, which says who is backlogged and what things cost.
"""

from __future__ import annotations

from collections.abc import Collection

from cache_store.domain import TenantId

_PRUNE_ABOVE = 1_024


class ServiceCounters:
    """One counter per tenant, in seconds of service for a weight of 1."""

    def __init__(self) -> None:
        self._counters: dict[TenantId, float] = {}
        self._level = 0.0
        """Where a tenant starts that comes while nobody is backlogged; never falls."""
        self._last: TenantId | None = None
        """Who had the least when the last backlog ended; still charged for what it runs."""

    def of(self, tenant: TenantId) -> float:
        """Its counter; the level for a tenant that is not known."""
        return self._counters.get(tenant, self._level)

    def charge(self, tenant: TenantId, seconds: float, weight: float) -> None:
        """It was given service; negative to take a charge back."""
        self._counters[tenant] = self.of(tenant) + seconds / weight

    def enter(self, tenant: TenantId, backlogged: Collection[TenantId]) -> None:
        """It has work again; `backlogged` are the tenants that have some already."""
        others = [self.of(other) for other in backlogged if other != tenant]
        if not others and self._last is not None:
            self._level = max(self._level, self.of(self._last))
        self._counters[tenant] = max(self.of(tenant), min(others, default=self._level))

    def settle(self, backlogged: Collection[TenantId]) -> None:
        """To be called after each step, with those who still have work."""
        if backlogged:
            self._last = min(backlogged, key=self.of)
            self._level = max(self._level, self.of(self._last))
        if len(self._counters) > _PRUNE_ABOVE:
            self._prune(backlogged)

    def check_invariants(self, tenants: Collection[TenantId]) -> None:
        """Raises AssertionError where one of the `tenants`, those with work, is not counted."""
        assert all(tenant in self._counters for tenant in tenants), "a tenant with work has no counter"
        assert all(counter > -1e-6 for counter in self._counters.values()), "a tenant was given back too much"

    def _prune(self, backlogged: Collection[TenantId]) -> None:
        """Forgets who would start from the same level anyway."""
        kept = {*backlogged, self._last}
        self._counters = {
            tenant: counter for tenant, counter in self._counters.items() if counter > self._level or tenant in kept
        }
