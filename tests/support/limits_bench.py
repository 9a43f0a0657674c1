"""Several routers' limits over one store in memory and a clock that stands still: time passes in steps of 10 ms.

Requests are tasks that hold a place, take tokens, and sleep by the bench's clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cache_store.clock import ManualClock
from cache_store.errors import LimitExceededError
from cache_store.limit_store import Exchange, LimitStoreUnavailableError, PlaceAsk, RouterId, TokenAsk
from cache_store.memory_limits import MemoryLimitStore
from cache_store.registry import WorkerId
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from services.router.cluster_limits import ClusterLimits, TokenNeed
from services.router.generation import Piece, Started, Timings
from services.tenants.model import Tenant, TenantLimits, new_tenant

STEP_S = 0.01
_NO_TIMINGS = Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0)


def limited(name: str, requests_in_flight: int | None = None, tokens_per_s: int | None = None) -> Tenant:
    """A tenant with limits."""
    return replace(new_tenant(name, 0.0), limits=TenantLimits(requests_in_flight, tokens_per_s))


class SwitchedStore:
    """LimitStore that can be out of reach, and counts how often it is asked.

    What is asked while it is out of reach is lost, or done when `late` is on: its answer reaches nobody, and it is done
    after whatever is asked later.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryLimitStore(clock)
        self.reachable = True
        self.late = False
        self.num_exchanges = 0
        self._stuck: list[tuple[RouterId, Sequence[PlaceAsk], Sequence[TokenAsk]]] = []

    async def exchange(self, router: RouterId, places: Sequence[PlaceAsk], tokens: Sequence[TokenAsk]) -> Exchange:
        self.num_exchanges += 1
        if not self.reachable:
            if self.late:
                self._stuck.append((router, places, tokens))
            raise LimitStoreUnavailableError("switched off by the test")
        return await self.inner.exchange(router, places, tokens)

    async def unstick(self) -> None:
        """Does what was stuck."""
        stuck, self._stuck = self._stuck, []
        for router, places, tokens in stuck:
            await self.inner.exchange(router, places, tokens)


@dataclass
class Spent:
    """Tokens of one request, when it made them."""

    at_s: float
    tokens: int


class LimitsBench:
    """Routers, by position; `None` in `routers` is one that has died."""

    def __init__(self, num_routers: int = 3) -> None:
        self.clock = ManualClock()
        self.store = SwitchedStore(self.clock)
        self.routers = [ClusterLimits(self.store, RouterId(f"router-{at}"), self.clock) for at in range(num_routers)]
        self.dead: set[int] = set()
        self.in_flight: Counter[str] = Counter()
        self.most_in_flight: Counter[str] = Counter()
        self.refused: list[LimitExceededError] = []
        self.spent: list[Spent] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    async def pass_time(self, seconds: float) -> None:
        """Steps until so much time has passed; `run` of each living router is done here."""
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            while self._sleepers and self._sleepers[0][0] <= self.now_s:
                future = heapq.heappop(self._sleepers)[2]
                if not future.done():
                    future.set_result(None)
            await self.settle()

    async def settle(self) -> None:
        """Lets everything happen that happens now."""
        for _ in range(4):
            for _ in range(4):
                await asyncio.sleep(0)
            for at, router in enumerate(self.routers):
                if at not in self.dead and router.due_s <= self.now_s:
                    await router.exchange()
                    router.check_invariants()

    def replace_router(self, at: int) -> None:
        """A router that died, without a word, and was started again."""
        self.routers[at] = ClusterLimits(self.store, RouterId(f"router-{next(self._numbers)}-{at}"), self.clock)

    async def sleep(self, seconds: float) -> None:
        """By the bench's clock."""
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now_s + seconds, next(self._numbers), future))
        await future

    async def request(
        self, at: int, tenant: Tenant, lasts_s: float, uncached: int = 0, made: int = 0, max_made: int | None = None
    ) -> bool:
        """One request at router `at`; False where it was refused."""
        limits = self.routers[at]
        need = TokenNeed(uncached, made if max_made is None else max_made)
        try:
            async with limits.place(tenant), limits.tokens(tenant, need) as meter:
                self.in_flight[tenant.name] += 1
                self.most_in_flight[tenant.name] = max(self.most_in_flight[tenant.name], self.in_flight[tenant.name])
                try:
                    await self.sleep(lasts_s / 2)
                    meter.note(Started(uncached, CachedTokens(), WorkerId("w"), 1, False, 0, 1, _NO_TIMINGS, 0.0))
                    self.spent.append(Spent(self.now_s, uncached))
                    for _ in range(made):
                        await self.sleep(lasts_s / 2 / made)
                        meter.note(Piece(0, "", pack((1,)), None))
                        self.spent.append(Spent(self.now_s, 1))
                finally:
                    self.in_flight[tenant.name] -= 1
        except LimitExceededError as error:
            self.refused.append(error)
            return False
        return True

    def start(self, at: int, tenant: Tenant, lasts_s: float) -> asyncio.Task[bool]:
        """A request as a task."""
        return asyncio.create_task(self.request(at, tenant, lasts_s))

    def used(self, begin_s: float, end_s: float) -> int:
        """Tokens spent from `begin_s` on, before `end_s`."""
        return sum(each.tokens for each in self.spent if begin_s <= each.at_s < end_s)


async def cancel_all(tasks: Sequence[asyncio.Task[bool]]) -> None:
    """Ends tasks that a test leaves behind."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
