"""Routers that publish and a worker that follows, in any order: nothing older comes back, and in the end all agree.

Two routers know the control data of one store, each as of its last poll; the store may be lost, and another one comes
whose generations begin anew. Somebody with a copy of every document puts old ones back, or removes what is there.
"""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from cache_store.clock import ManualClock
from cache_store.fence import NO_FENCES, FenceTable
from cache_store.quota import QuotaTable
from cache_store.quota_document import QuotaDocument
from cache_store.tier_kind import TierKind
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant, new_tenant
from services.tenants.purge import EVERYTHING, ModelScope, PartitionScope, PurgeScope, new_purge
from services.tenants.quota_change import QuotaChange, ShareChange
from services.tenants.quota_publisher import REFRESH_S, QuotaPublisher
from services.tenants.state import ControlState, Head
from services.tenants.table import ControlTable, add_tenant, purge_tenant, set_quota
from tests.support.memory_quotas import MemoryQuotas
from worker.quota_watch import QuotaWatch

KEY = b"k" * 32
ACME: Tenant = new_tenant("acme", 1.0)
routers = st.integers(0, 1)


class Publication(RuleBasedStateMachine):
    """The store's state is `self.state`; a router knows what it has read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.published = MemoryQuotas()
        self.state = ControlState(Head("store-0", 1, "w", "m"), add_tenant(ControlTable(), ACME))
        self.num_stores = 1
        self.directories = [TenantDirectory(self.clock) for _ in range(2)]
        self.publishers = [QuotaPublisher(self.published, each, KEY, self.clock) for each in self.directories]
        self.copies: list[QuotaDocument] = []
        self.in_force = QuotaTable(0, {})
        self.fences = NO_FENCES
        self.watch = QuotaWatch(self.published, KEY, self.take, self.take_fences, lambda _: None, lambda: None)
        self.latest: dict[str, int] = {}
        """Generation in force last, by store."""
        for router in range(2):
            self.poll_store(router)

    async def take(self, quotas: QuotaTable) -> None:
        self.in_force = quotas

    async def take_fences(self, fences: FenceTable) -> None:
        """What was purged stays so, but for a moment after a store was lost: what is published later is newer then."""
        if self.fences.generation and self.num_stores == 1:
            assert fences.fences[ACME.id].order >= self.fences.fences[ACME.id].order
        self.fences = fences

    @rule(scope=st.sampled_from([EVERYTHING, PartitionScope("p"), ModelScope("m")]), router=routers)
    def purge(self, scope: PurgeScope, router: int) -> None:
        """At a router, which publishes it."""
        assert self.state.head is not None
        table = purge_tenant(self.state.table, ACME.id, new_purge(scope, self.clock.unix_s()))
        self.state = ControlState(Head(self.state.head.store_id, self.state.generation + 1, "w", "m"), table)
        self.poll_store(router)
        self.publish(router)
        self.look()

    @rule(eighths=st.integers(0, 8), router=routers)
    def change(self, eighths: int, router: int) -> None:
        """At a router, which publishes it; the other one has it with its next poll."""
        assert self.state.head is not None
        share = QuotaChange({TierKind.DEVICE: ShareChange(eighths / 8)})
        table = set_quota(self.state.table, "acme", share, self.clock.unix_s())
        head = Head(self.state.head.store_id, self.state.generation + 1, "w", "m")
        self.state = ControlState(head, table)
        self.poll_store(router)
        self.publish(router)
        self.look()

    @rule()
    def lose_the_store(self) -> None:
        """Another one is filled from what routers know; it counts from the beginning."""
        self.state = ControlState(Head(f"store-{self.num_stores}", 1, "w", "m"), self.state.table)
        self.num_stores += 1

    @rule(router=routers)
    def poll_store(self, router: int) -> None:
        self.directories[router].install(self.state)
        self.directories[router].confirm(self.clock.monotonic_s())

    @rule(router=routers)
    def publish(self, router: int) -> None:
        """With what the router knows, which may be old."""
        self.clock.advance(0.001)
        self.loop.run_until_complete(self.publishers[router].publish())
        if self.published.document is not None:
            self.copies.append(self.published.document)

    @rule(data=st.data())
    def put_an_old_one_back(self, data: st.DataObject) -> None:
        if self.copies:
            self.published.document = data.draw(st.sampled_from(self.copies))
            self.look()

    @rule()
    def remove(self) -> None:
        self.published.document = None

    @rule(seconds=st.sampled_from([0.5, 9.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def look(self) -> None:
        before = self.watch.in_force
        self.loop.run_until_complete(self.watch.poll())
        after = self.watch.in_force
        if before is None or after is None:
            assert after is not None or self.published.document is None
            return
        assert after.generation >= self.latest.get(after.store_id, 0)
        assert after.store_id == before.store_id or after.publish_unix_s > before.publish_unix_s
        self.latest[after.store_id] = after.generation

    def teardown(self) -> None:
        """Left alone for a while, everybody has what the store says."""
        for _ in range(2):
            self.clock.advance(REFRESH_S)
            for router in range(2):
                self.poll_store(router)
                self.publish(router)
            self.look()
        self.loop.close()
        expected = self.state.table.tenant_by_name("acme").quota
        assert self.watch.generation == self.state.generation
        assert self.in_force.of(ACME.id) == expected
        assert self.fences.fences == {ACME.id: self.state.table.tenants[ACME.id].fence}


TestPublication = Publication.TestCase
