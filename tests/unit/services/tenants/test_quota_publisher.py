"""A router publishes what it knows, where what stands there is missing, older or not refreshed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import MappingProxyType

import pytest

from cache_store.clock import ManualClock
from cache_store.encoding import encode
from cache_store.fence import FenceTable
from cache_store.fence_document import FenceReader
from cache_store.quota import QuotaTable
from cache_store.quota_document import QUOTA_VERSION, QuotaDocument, read_head, read_published
from cache_store.tier_kind import TierKind
from services.tenants.directory import CONTROL_AGE_BOUND_S, TenantDirectory
from services.tenants.model import new_tenant
from services.tenants.purge import PartitionScope, new_purge, purged
from services.tenants.quota_change import QuotaChange, ShareChange, with_terms
from services.tenants.quota_publisher import ABANDONED_S, REFRESH_S, QuotaPublisher
from services.tenants.state import ControlState, Head
from services.tenants.table import ControlTable, add_tenant, delete_tenant
from tests.support.memory_quotas import MemoryQuotas
from tests.support.quotas import quota_document

KEY = b"k" * 32
ACME = with_terms(new_tenant("acme", 1.0), QuotaChange({TierKind.DEVICE: ShareChange(0.25)}))
STATE = ControlState(Head("store", 5, "w", "m"), add_tenant(ControlTable(), ACME))
ELSE = QuotaTable(0, MappingProxyType({}))


class Router:
    """One router's publisher and directory over a shared store."""

    def __init__(self, store: MemoryQuotas, clock: ManualClock, state: ControlState = STATE) -> None:
        self.clock = clock
        self.directory = TenantDirectory(clock)
        self.publisher = QuotaPublisher(store, self.directory, KEY, clock)
        self.know(state)

    def know(self, state: ControlState) -> None:
        self.directory.install(state)
        self.directory.confirm(self.clock.monotonic_s())


@pytest.fixture
def store() -> MemoryQuotas:
    return MemoryQuotas()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def router(store: MemoryQuotas, clock: ManualClock) -> Router:
    return Router(store, clock)


def found(store: MemoryQuotas) -> tuple[str, int, float]:
    """Store, generation and acme's guarantee, as a worker would read them."""
    assert store.document is not None
    head = read_head(KEY, store.document.head)
    quotas = read_published(head, store.document.body, FenceReader()).quotas
    return head.store_id, head.generation, quotas.of(ACME.id).share(TierKind.DEVICE).minimum


def at(generation: int, store_id: str = "store") -> ControlState:
    return ControlState(Head(store_id, generation, "w", "m"), STATE.table)


async def test_quotas_are_published_once(router: Router, store: MemoryQuotas) -> None:
    for _ in range(3):
        await router.publisher.publish()
    assert found(store) == ("store", 5, 0.25)
    assert store.num_written == 1


async def test_nothing_is_published_before_the_control_data_was_read(store: MemoryQuotas, clock: ManualClock) -> None:
    directory = TenantDirectory(clock)
    directory.install(STATE)
    await QuotaPublisher(store, directory, KEY, clock).publish()
    assert store.document is None


async def test_a_router_that_is_cut_off_leaves_it_to_others(
    router: Router, store: MemoryQuotas, clock: ManualClock
) -> None:
    clock.advance(CONTROL_AGE_BOUND_S + 1)
    await router.publisher.publish()
    assert store.document is None


@pytest.mark.parametrize(
    "there",
    [
        QuotaDocument(b"", b""),
        QuotaDocument(b"nonsense", b""),
        quota_document(b"o" * 32, "store", replace(ELSE, generation=9), 0.0),
        quota_document(KEY, "store", replace(ELSE, generation=4), 0.0),
        quota_document(KEY, "another", replace(ELSE, generation=9), 0.0),
    ],
    ids=["empty", "nonsense", "of another cluster", "older", "of another store"],
)
async def test_what_this_router_knows_better_is_replaced(
    router: Router, store: MemoryQuotas, there: QuotaDocument
) -> None:
    store.document = there
    await router.publisher.publish()
    assert found(store) == ("store", 5, 0.25)


async def test_what_another_router_knows_better_is_left_alone(
    router: Router, store: MemoryQuotas, clock: ManualClock
) -> None:
    other = Router(store, clock, at(6))
    await other.publisher.publish()
    await router.publisher.publish()
    assert found(store)[1] == 6


async def test_what_nobody_refreshes_any_more_is_replaced(
    router: Router, store: MemoryQuotas, clock: ManualClock
) -> None:
    await Router(store, clock, at(6)).publisher.publish()
    clock.advance(ABANDONED_S)
    router.know(STATE)
    await router.publisher.publish()
    assert found(store)[1] == 5


async def test_equal_quotas_are_refreshed_so_that_a_replay_is_older(
    router: Router, store: MemoryQuotas, clock: ManualClock
) -> None:
    await router.publisher.publish()
    assert store.document is not None
    first = read_head(KEY, store.document.head)
    clock.advance(REFRESH_S)
    router.know(STATE)
    await router.publisher.publish()
    assert read_head(KEY, store.document.head).is_newer(first)


async def test_quotas_of_a_later_build_are_left_alone(router: Router, store: MemoryQuotas) -> None:
    fields = encode(QUOTA_VERSION + 1, "whatever")
    mac = hashlib.blake2b(fields, key=KEY, digest_size=32, person=b"sc-quotas").digest()
    store.document = QuotaDocument(fields + mac, b"")
    await router.publisher.publish()
    assert store.num_written == 0


async def test_a_store_that_is_away_is_tried_again(router: Router, store: MemoryQuotas) -> None:
    store.reachable = False
    await router.publisher.publish()
    store.reachable = True
    await router.publisher.publish()
    assert found(store) == ("store", 5, 0.25)


async def test_guarantees_that_are_not_in_force_are_published_as_they_are_in_force(
    router: Router, store: MemoryQuotas
) -> None:
    older = with_terms(new_tenant("globex", 0.0), QuotaChange({TierKind.DEVICE: ShareChange(0.9)}))
    table = ControlTable(MappingProxyType({ACME.id: ACME, older.id: older}))
    router.know(ControlState(at(6).head, table))
    await router.publisher.publish()
    assert found(store) == ("store", 6, pytest.approx(0.1))


async def test_the_fences_of_all_living_tenants_are_published(router: Router, store: MemoryQuotas) -> None:
    globex = purged(new_tenant("globex", 1.0), new_purge(PartitionScope("p"), 2.0))
    table = delete_tenant(add_tenant(add_tenant(STATE.table, globex), new_tenant("gone", 1.0)), "gone")
    router.know(ControlState(Head("store", 6, "w", "m"), table))
    await router.publisher.publish()
    assert store.document is not None
    read = read_published(read_head(KEY, store.document.head), store.document.body, FenceReader()).fences
    assert read == FenceTable(6, {ACME.id: ACME.fence, globex.id: globex.fence})
