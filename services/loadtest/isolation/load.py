"""What both tenants do all the while in the variant under load: each sends requests of its own, half of them repeats.

Between two requests a tenant pauses at random, five times as long on average as its last first request took, so that it
computes a sixth of the time or less however fast the system is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cache_store.errors import StemcacheError
from services.loadtest.isolation.prompts import FreshPrompts
from services.loadtest.isolation.samples import Party, Prober, Variant

_KEPT_PROMPTS = 8
"""Of each tenant, that it repeats."""
_PAUSE_FACTOR = 5.0


@asynccontextmanager
async def surroundings(variant: Variant, prober: Prober, prompts: FreshPrompts, num_tokens: int) -> AsyncIterator[None]:
    """What a variant wants to go on, until the block ends. Raises StemcacheError where a request of it fails."""
    if variant is Variant.QUIET:
        yield
        return
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_keep_sending(party, prober, prompts, num_tokens)) for party in Party]
            yield
            for task in tasks:
                task.cancel()
    except* StemcacheError as failures:
        raise failures.exceptions[0] from None


async def _keep_sending(party: Party, prober: Prober, prompts: FreshPrompts, num_tokens: int) -> None:
    kept: list[tuple[int, ...]] = []
    first_s = 0.0
    while True:
        if kept and prompts.heads():
            await prober.ask(party, kept[0])
            kept = [*kept[1:], kept[0]]
        else:
            kept = [*kept, prompts.draw(num_tokens)][-_KEPT_PROMPTS:]
            first_s = (await prober.ask(party, kept[-1])).ttft_s
        await asyncio.sleep(prompts.pause(_PAUSE_FACTOR * first_s))
