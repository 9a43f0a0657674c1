"""The curves of reuse of all tenants of a pool, within bounded memory. Owned by the pool's ledger."""

from __future__ import annotations

from cache_store.domain import TenantId
from cache_store.reuse_curve import NO_CURVE, CurvePoints, ReuseCurve

MAX_CURVES = 256
"""Tenants; of more, those that ask most."""

MAX_ROOM = 8_192
"""Blocks that are followed of one tenant."""

USUAL_ROOM = 1 << 16
"""Of all tenants together: about 15 MB."""


class ReuseCurves:
    """Of one pool."""

    def __init__(self, room: int, num_blocks: int) -> None:
        """Follows at most `room` blocks, none for 0; `num_blocks` are those of the pool."""
        self._room = room
        self._depth = num_blocks + num_blocks // 4
        self._curves: dict[TenantId, ReuseCurve] = {}

    def open(self, tenant: TenantId) -> ReuseCurve | None:
        """The curve of a tenant that the pool meets; None where none is kept."""
        if self._room == 0:
            return None
        if len(self._curves) >= MAX_CURVES:
            del self._curves[min(self._curves, key=lambda each: self._curves[each].asked_blocks)]
        room = min(MAX_ROOM, self._room // (len(self._curves) + 1))
        for curve in self._curves.values():
            curve.resize(room)
        opened = self._curves[tenant] = ReuseCurve(room, self._depth)
        return opened

    def close(self, tenant: TenantId) -> None:
        """The tenant is deleted."""
        self._curves.pop(tenant, None)

    def points(self, tenant: TenantId) -> CurvePoints:
        """The tenant's curve so far; an empty one where none is kept."""
        curve = self._curves.get(tenant)
        return NO_CURVE if curve is None else curve.points()
