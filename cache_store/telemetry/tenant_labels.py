"""Which tenants have a label of their own: at most so many, everybody else is added up under one label.

A label stays its tenant's for as long as the tenant lives, so that its counters never go back. Owned by one event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from cache_store.domain import TenantId

MAX_TENANTS = 64
OTHER = "other"
"""Label of all tenants without one of their own, and of a tenant of that name."""


class TenantLabels:
    """Of one process."""

    def __init__(self, is_alive: Callable[[TenantId], bool], max_tenants: int = MAX_TENANTS) -> None:
        self._is_alive = is_alive
        self._max_tenants = max_tenants
        self._labels: dict[TenantId, str] = {}

    def of(self, tenant: TenantId, name: str) -> str:
        """The tenant's label; the first ones that are asked for get one of their own."""
        label = self._labels.get(tenant)
        if label is not None:
            return label
        if len(self._labels) >= self._max_tenants:
            return OTHER
        self._labels[tenant] = name
        return name

    def forget_dead(self) -> frozenset[str]:
        """Frees the labels of tenants that were deleted; which ones are nobody's now."""
        dead = [tenant for tenant in self._labels if not self._is_alive(tenant)]
        gone = {self._labels.pop(tenant) for tenant in dead}
        return frozenset(gone - set(self._labels.values()))
