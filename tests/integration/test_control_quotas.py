"""Quotas in the control store: durable, repaired, exported; two routers that change them at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cache_store.clock import ManualClock
from cache_store.errors import NotFoundError, PreconditionError
from cache_store.quota import TierShare
from cache_store.tier_kind import TierKind
from services.cluster.valkey import EmbeddedValkey
from services.tenants.model import TenantLimits
from services.tenants.quota_change import QuotaChange, ShareChange
from services.tenants.redis_store import CONTROL_KEY, ControlStore
from services.tenants.state import CONTROL_SCHEMA, ControlState
from tests.support.control import MASTER, RouterControl, operator_client, raw_control, roll_back
from tests.support.old_control_schemas import old_record
from tests.support.redis_servers import RedisServer

CHANGE = QuotaChange({TierKind.DEVICE: ShareChange(0.25, 0.5)}, weight=2.0, max_pinned=0.2, tokens_per_s=900)


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with operator_client(redis_server) as client:
        yield client


@pytest.fixture
def store(redis: Redis) -> ControlStore:
    return ControlStore(redis, MASTER, ManualClock())


def guarantee(minimum: float) -> QuotaChange:
    return QuotaChange({TierKind.DEVICE: ShareChange(minimum)})


def has_change(state: ControlState) -> bool:
    acme = state.table.tenant_by_name("acme")
    share = acme.quota.share(TierKind.DEVICE)
    return (share, acme.quota.weight, acme.quota.max_pinned, acme.limits) == (
        TierShare(0.25, 0.5),
        2.0,
        0.2,
        TenantLimits(None, 900),
    )


async def test_what_was_set_is_read_back(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme")
    assert has_change((await store.set_quota("acme", CHANGE)).state)
    assert has_change(await ControlStore(redis, MASTER, ManualClock()).read())


async def test_a_tenant_can_be_made_with_its_quota(store: ControlStore) -> None:
    assert has_change((await store.create_tenant("acme", CHANGE)).state)
    with pytest.raises(PreconditionError, match="75 % is free"):
        await store.create_tenant("globex", guarantee(0.8))
    assert list((await store.read()).table.tenants) == [(await store.read()).table.tenant_by_name("acme").id]


async def test_setting_what_is_set_writes_nothing(store: ControlStore) -> None:
    await store.create_tenant("acme", CHANGE)
    before = await store.read()
    assert (await store.set_quota("acme", CHANGE)).state == before
    assert (await store.read()).head == before.head


async def test_a_tenant_that_is_not_there_has_no_quota(store: ControlStore) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await store.set_quota("nobody", CHANGE)


async def test_of_two_routers_that_promise_the_same_room_at_once_one_is_refused(redis: Redis) -> None:
    stores = [ControlStore(redis, MASTER, ManualClock()) for _ in range(2)]
    for name in ("acme", "globex"):
        await stores[0].create_tenant(name)
    results = await asyncio.gather(
        stores[0].set_quota("acme", guarantee(0.6)),
        stores[1].set_quota("globex", guarantee(0.6)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Committed", "PreconditionError"]
    tenants = (await stores[0].read()).table.tenants.values()
    assert sorted(tenant.quota.share(TierKind.DEVICE).minimum for tenant in tenants) == [0.0, 0.6]


async def test_changes_of_one_tenant_by_two_routers_are_both_in_force(redis: Redis) -> None:
    stores = [ControlStore(redis, MASTER, ManualClock()) for _ in range(2)]
    await stores[0].create_tenant("acme")
    await asyncio.gather(
        stores[0].set_quota("acme", guarantee(0.6)), stores[1].set_quota("acme", QuotaChange(weight=3.0))
    )
    acme = (await stores[0].read()).table.tenant_by_name("acme")
    assert (acme.quota.share(TierKind.DEVICE).minimum, acme.quota.weight, acme.quota_number) == (0.6, 3.0, 2)


async def test_quotas_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(RedisServer("valkey", server.urls)) as redis:
            written = (await ControlStore(redis, MASTER, ManualClock()).create_tenant("acme", CHANGE)).state
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(RedisServer("valkey", server.urls)) as redis:
            assert await ControlStore(redis, MASTER, ManualClock()).read() == written


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "rolled back"])
async def test_a_store_that_lost_a_quota_gets_it_back_from_a_router_that_starts(
    redis: Redis, tmp_path: Path, emptied: bool
) -> None:
    router = RouterControl(redis, tmp_path)
    await router.store.create_tenant("acme")
    old = await raw_control(redis)
    await router.store.set_quota("acme", CHANGE)
    await router.sync.sync_once()
    await roll_back(redis, {} if emptied else old)
    again = RouterControl(redis, tmp_path)
    await again.sync.sync_once()
    assert has_change(await again.store.read())
    assert has_change(again.directory.state)


async def test_quotas_are_exported_and_imported(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme", CHANGE)
    document = await store.export_document()
    await redis.delete(CONTROL_KEY)
    assert has_change((await store.import_document(document)).state)


async def test_an_import_that_promises_more_than_there_is_is_refused(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme", guarantee(0.6))
    document = await store.export_document()
    await redis.delete(CONTROL_KEY)
    await store.create_tenant("globex", guarantee(0.6))
    before = await raw_control(redis)
    with pytest.raises(PreconditionError, match="add up to 120 %"):
        await store.import_document(document)
    assert await raw_control(redis) == before


async def make_old(redis: Redis, schema: int) -> None:
    """Makes the store what a build of that schema has written."""
    for name, text in (await raw_control(redis)).items():
        await redis.hset(CONTROL_KEY, name.decode(), old_record(text, schema))


@pytest.mark.parametrize("schema", [1, 2, 3])
async def test_a_store_of_an_earlier_build_is_read_and_becomes_new_with_a_write(
    store: ControlStore, redis: Redis, schema: int
) -> None:
    await store.create_tenant("acme")
    await store.create_key("acme")
    await store.create_tenant("globex")
    table = (await store.read()).table
    await make_old(redis, schema)
    old = await ControlStore(redis, MASTER, ManualClock()).read()
    assert old.table == table
    assert old.head is not None
    assert old.head.schema == schema
    after = (await ControlStore(redis, MASTER, ManualClock()).set_quota("acme", CHANGE)).state
    assert has_change(after)
    again = await ControlStore(redis, MASTER, ManualClock()).read()
    assert again == after
    assert again.head is not None
    assert again.head.schema == CONTROL_SCHEMA


@pytest.mark.parametrize("schema", [1, 2, 3])
async def test_routers_poll_a_store_of_an_earlier_build_without_writing(
    redis: Redis, tmp_path: Path, schema: int
) -> None:
    router = RouterControl(redis, tmp_path)
    await router.store.create_tenant("acme")
    await make_old(redis, schema)
    before = await raw_control(redis)
    for _ in range(2):
        await router.sync.sync_once()
    await RouterControl(redis, tmp_path).sync.sync_once()
    assert await raw_control(redis) == before
