"""Two tenants' requests, either one after the other or at once. Keeps no state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cache_store.errors import StemcacheError
from services.loadtest.isolation.samples import Party, Variant


def num_at_once(variant: Variant) -> int:
    """Requests that are on their way together."""
    return 1 if variant is Variant.QUIET else len(Party)


async def run_lanes(variant: Variant, lane: Callable[[Party], Coroutine[Any, Any, None]]) -> None:
    """Either tenant's lane to its end; under load both at the same time. Raises StemcacheError where one does."""
    if num_at_once(variant) == 1:
        for party in Party:
            await lane(party)
        return
    try:
        async with asyncio.TaskGroup() as group:
            for party in Party:
                group.create_task(lane(party))
    except* StemcacheError as failures:
        raise failures.exceptions[0] from None
