"""Protocol of the store of what tenants used, by hour: writers add numbered batches, each of which counts once.

The data is durable. Knows no prices, and names only of tenants that were deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NewType, Protocol

from cache_store.domain import TenantId
from cache_store.meter_batches import MeterBatch, MeterLine

MeterWriterId = NewType("MeterWriterId", str)
"""One life of a router or worker."""


class MeterSpace(StrEnum):
    """Whose counts; each kind of process writes to its own."""

    REQUESTS = "requests"
    """Requests and tokens: routers."""
    BLOCKS = "blocks"
    """Blocks: workers."""


class MeterUnavailableError(Exception):
    """The store cannot be reached, does not answer, or refuses."""


class MeterStore(Protocol):
    """Of one space. Every method raises MeterUnavailableError."""

    async def add(self, writer: MeterWriterId, batch: MeterBatch) -> int:
        """Adds a batch where it follows the writer's last one; the number of the last that is stored after that.

        One that is stored already changes nothing, nor does one before which some are missing that the writer still
        has: the answer says from where to go on.
        """
        ...

    async def read(self, first_hour: int, end_hour: int, tenant: TenantId | None) -> list[MeterLine]:
        """Lines of the hours up to `end_hour`, exclusive, by hour; of one tenant or, for None, of all."""
        ...


class MeterNames(Protocol):
    """Names of tenants that were deleted, for as long as hours are kept in which they used something.

    Every method raises MeterUnavailableError.
    """

    async def keep(self, tenant: TenantId, name: str) -> None:
        """From now on."""
        ...

    async def of(self, tenants: Collection[TenantId]) -> Mapping[TenantId, str]:
        """Those of them that are kept."""
        ...
