"""How many keys of each tenant were revoked, and since when a worker has known it. Owned by its event loop; pure."""

from __future__ import annotations

from collections.abc import Mapping

from cache_store.domain import TenantId


class RevokedKeys:
    """Numbers that only grow, each with the time at which it was heard of."""

    def __init__(self) -> None:
        self._heard: dict[TenantId, list[tuple[float, int]]] = {}
        """Oldest first; of those that are settled only the last."""

    def take(self, counts: Mapping[TenantId, int], now_s: float) -> None:
        """What is published now. Tenants that it does not name are deleted, or have no key that was revoked."""
        for tenant in self._heard.keys() - counts.keys():
            del self._heard[tenant]
        for tenant, count in counts.items():
            heard = self._heard.setdefault(tenant, [])
            if not heard or heard[-1][1] < count:
                heard.append((now_s, count))

    def settled(self, tenant: TenantId, until_s: float) -> int:
        """The number that was heard of by then."""
        heard = self._heard.get(tenant)
        if heard is None:
            return 0
        while len(heard) > 1 and heard[1][0] <= until_s:
            del heard[0]
        return heard[0][1] if heard[0][0] <= until_s else 0
