"""What each tenant may have of the workers' pools, as the control data of this router says it.

Follows the directory: computed anew when that has other data. Owned by one event loop.
"""

from __future__ import annotations

from cache_store.domain import TenantId
from cache_store.quota import PoolPart, QuotaTable
from cache_store.tier_kind import TierKind
from services.tenants.directory import TenantDirectory
from services.tenants.guarantees import quotas_in_force
from services.tenants.state import ControlState


class PoolParts:
    """Parts of the device's pools by tenant."""

    def __init__(self, directory: TenantDirectory) -> None:
        self._directory = directory
        self._state: ControlState | None = None
        self._quotas: QuotaTable
        self._parts: dict[TenantId, PoolPart] = {}

    def of(self, tenant: TenantId) -> PoolPart:
        """The tenant's part."""
        state = self._directory.state
        if state is not self._state:
            self._state, self._quotas = state, quotas_in_force(state)
            self._parts.clear()
        found = self._parts.get(tenant)
        if found is None:
            found = self._parts[tenant] = self._quotas.part(tenant, TierKind.DEVICE)
        return found
