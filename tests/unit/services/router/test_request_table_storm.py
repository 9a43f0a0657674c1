"""The request table under random callers, retries, cancels, errors and departures: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.clock import ManualClock
from cache_store.domain import TenantId
from cache_store.errors import AlreadyExistsError, LimitExceededError, StemcacheError, UnavailableError, WorkerLostError
from cache_store.registry import WorkerId
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from services.router.generation import Finished, FinishReason, Piece, Started, Take, Timings
from services.router.limits import Concurrency
from services.router.request_table import Call, RequestTable
from services.router.results import KeptResults, ResultBounds

TIMINGS = Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0)
STARTED = Started(4, CachedTokens(), WorkerId("w"), 1, False, 7, 1, TIMINGS, 1_000.0)
GRACE_S = 0.002
TENANTS = [TenantId("acme"), TenantId("globex")]


class World:
    """One table, and how many generations are inside their body."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        clock = ManualClock()
        bounds = ResultBounds(max_per_tenant=3)
        self.table = RequestTable(clock, Concurrency("places", 6, 4), KeptResults(clock, bounds), GRACE_S)
        self.num_inside = 0

    async def generation(self, request_id: str, take: Take) -> None:
        self.num_inside += 1
        try:
            await self.pause()
            take(STARTED)
            for token in range(self.rng.randrange(6)):
                await self.pause()
                take(Piece(0, "t", pack([token]), None))
            if self.rng.random() < 0.2:
                raise self.rng.choice([WorkerLostError("lost"), ZeroDivisionError()])
            take(Piece(0, "t", pack([99]), FinishReason.STOP))
            take(Finished(TIMINGS))
        finally:
            self.num_inside -= 1

    async def pause(self) -> None:
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(0)
        if self.rng.random() < 0.1:
            await asyncio.sleep(GRACE_S)

    async def caller(self) -> str:
        """One call, of which the outcome must be one that callers know."""
        tenant = self.rng.choice(TENANTS)
        request_id = self.rng.choice([None, "1", "2"])
        call = Call(tenant, request_id, self.rng.choice([b"same", b"same", b"other"]))
        try:
            with self.table.attach(call, self.generation) as attached:
                async for _ in attached.progress.events():
                    await self.pause()
                assert attached.progress.finished is not None
        except (AlreadyExistsError, LimitExceededError, UnavailableError):
            return "refused"
        except (StemcacheError, ZeroDivisionError):
            return "failed"
        return "finished"

    async def storm(self, num_callers: int) -> None:
        callers = []
        for _ in range(num_callers):
            callers.append(asyncio.create_task(self.caller()))
            await self.pause()
            self.table.check_invariants()
            action = self.rng.random()
            if action < 0.2:
                self.rng.choice(callers).cancel()
            elif action < 0.3:
                self.table.cancel(self.rng.choice(TENANTS), self.rng.choice(["1", "2"]))
        outcomes = await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), 20.0)
        strange = [each for each in outcomes if not isinstance(each, str | asyncio.CancelledError)]
        assert strange == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_nothing_is_lost_and_nothing_is_left(seed: int, num_callers: int) -> None:
    async def run() -> None:
        world = World(seed)
        await world.storm(num_callers)
        await world.table.idle()
        await asyncio.sleep(0)
        world.table.check_invariants()
        assert (world.table.num_running, world.num_inside) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(5))
async def test_closing_in_a_storm_leaves_nothing(seed: int) -> None:
    world = World(seed)
    storm = asyncio.create_task(world.storm(20))
    await asyncio.sleep(0.001)
    await world.table.close()
    await storm
    await world.table.close()
    assert (world.table.num_running, world.num_inside) == (0, 0)
