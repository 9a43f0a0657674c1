"""Directories of several routers over a store that is restarted, emptied, rolled back or away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cache_store.errors import (
    CorruptDataError,
    InvalidRequestError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)
from services.tenants.directory import TenantDirectory
from services.tenants.redis_store import CONTROL_KEY, ControlStore
from services.tenants.state import EMPTY_STATE
from services.tenants.sync import DirectorySync
from tests.support.control import MASTER, OTHER_MASTER, RouterControl, operator_client, raw_control, roll_back
from tests.support.redis_servers import RedisServer


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with operator_client(redis_server) as client:
        yield client


@pytest.fixture
def router(redis: Redis, tmp_path: Path) -> RouterControl:
    return RouterControl(redis, tmp_path / "a")


@pytest.fixture
def second(redis: Redis, tmp_path: Path) -> RouterControl:
    return RouterControl(redis, tmp_path / "b")


def refusal(directory: TenantDirectory, key: str) -> str:
    with pytest.raises(UnauthenticatedError) as caught:
        directory.authenticate(key)
    return str(caught.value)


async def test_a_key_opens_its_tenant_at_every_router(router: RouterControl, second: RouterControl) -> None:
    tenant = (await router.store.create_tenant("acme")).value
    key = (await router.store.create_key("acme")).value.text
    for each in (router, second):
        await each.sync.sync_once()
        assert each.directory.authenticate(key) == tenant
        assert each.directory.tenant_by_name("acme") == tenant


async def test_all_bad_keys_get_one_sentence(router: RouterControl) -> None:
    await router.store.create_tenant("acme")
    live = (await router.store.create_key("acme")).value.text
    revoked = (await router.store.create_key("acme")).value
    await router.store.revoke_key(revoked.key.key_id)
    await router.sync.sync_once()
    wrong_secret = live[:-2] + ("aa" if live[-2:] != "aa" else "bb")
    unknown = "sc-" + "a" * 16 + live[19:]
    bad = ["", "sc-", "Bearer " + live, live + " ", live.upper(), "\u0000", "ключ", unknown, wrong_secret, revoked.text]
    assert len({refusal(router.directory, key) for key in bad}) == 1
    assert router.directory.authenticate(live).name == "acme"


async def test_a_revocation_reaches_another_router_with_its_next_poll(
    router: RouterControl, second: RouterControl
) -> None:
    await router.store.create_tenant("acme")
    key = (await router.store.create_key("acme")).value
    await second.sync.sync_once()
    assert second.directory.authenticate(key.text).name == "acme"
    await router.store.revoke_key(key.key.key_id)
    await second.sync.sync_once()
    refusal(second.directory, key.text)


async def test_before_the_first_sync_nothing_is_answered(router: RouterControl) -> None:
    await router.store.create_tenant("acme")
    key = (await router.store.create_key("acme")).value.text
    assert not router.directory.is_ready
    assert router.directory.is_stale
    with pytest.raises(UnavailableError):
        router.directory.authenticate(key)


async def test_an_own_write_is_in_force_without_a_poll(router: RouterControl) -> None:
    await router.sync.sync_once()
    await router.sync.adopt((await router.store.create_tenant("acme")).state)
    key = await router.store.create_key("acme")
    await router.sync.adopt(key.state)
    assert router.directory.authenticate(key.value.text).name == "acme"
    assert router.snapshot.load() == key.state


async def test_an_own_write_onto_a_store_that_lost_something_is_left_to_the_next_poll(
    router: RouterControl, redis: Redis
) -> None:
    await router.store.create_tenant("acme")
    key = (await router.store.create_key("acme")).value
    old = await raw_control(redis)
    await router.store.revoke_key(key.key.key_id)
    await router.sync.sync_once()
    await roll_back(redis, old)
    await router.store.create_tenant("x")
    await router.sync.adopt((await router.store.create_tenant("y")).state)
    refusal(router.directory, key.text)
    await router.sync.sync_once()
    refusal(router.directory, key.text)
    assert router.directory.tenant_by_name("y").name == "y"


async def test_age_counts_from_before_a_slow_answer(router: RouterControl, redis: Redis) -> None:
    class SlowStore(ControlStore):
        async def read_head_text(self) -> str:
            router.clock.advance(3)
            return await super().read_head_text()

    store = SlowStore(redis, MASTER, router.clock)
    await DirectorySync(store, router.directory, router.snapshot, EMPTY_STATE, router.clock).sync_once()
    assert router.directory.age_s() == 3


async def test_an_emptied_store_is_repaired_from_memory(router: RouterControl, redis: Redis) -> None:
    await router.store.create_tenant("acme")
    key = (await router.store.create_key("acme")).value.text
    await router.sync.sync_once()
    known = router.directory.state
    await redis.delete(CONTROL_KEY)
    await router.sync.sync_once()
    stored = await router.store.read()
    assert stored.table == known.table
    assert stored.generation > known.generation
    assert stored.head is not None
    assert known.head is not None
    assert stored.head.store_id != known.head.store_id
    assert router.directory.authenticate(key).name == "acme"


async def test_an_emptied_store_is_repaired_from_the_snapshot_of_a_router_that_starts(
    router: RouterControl, redis: Redis, tmp_path: Path
) -> None:
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    known = router.directory.state
    await redis.delete(CONTROL_KEY)
    started = RouterControl(redis, tmp_path / "a")
    await started.sync.sync_once()
    assert (await started.store.read()).table == known.table
    assert started.directory.generation > known.generation


async def test_a_rolled_back_store_revives_nothing(router: RouterControl, redis: Redis) -> None:
    await router.store.create_tenant("acme")
    await router.store.create_tenant("globex")
    key = (await router.store.create_key("acme")).value
    old = await raw_control(redis)
    await router.store.revoke_key(key.key.key_id)
    epoch = (await router.store.rotate_epoch("acme")).value.epoch
    await router.store.delete_tenant("globex")
    await router.sync.sync_once()
    generation = router.directory.generation

    await roll_back(redis, old)
    await router.sync.sync_once()
    table = (await router.store.read()).table
    assert table.keys[key.key.key_id].revoked
    assert table.tenant_by_name("acme").epoch == epoch
    assert [tenant.name for tenant in table.tenants.values()] == ["acme"]
    assert router.directory.generation > generation
    refusal(router.directory, key.text)


async def test_a_rolled_back_store_that_was_written_past_the_snapshot_is_still_repaired(
    router: RouterControl, second: RouterControl, redis: Redis
) -> None:
    await router.store.create_tenant("acme")
    key = (await router.store.create_key("acme")).value
    old = await raw_control(redis)
    await router.store.revoke_key(key.key.key_id)
    await router.sync.sync_once()
    await roll_back(redis, old)
    for name in ("x", "y", "z"):
        await second.store.create_tenant(name)
    assert (await second.store.read()).generation > router.directory.generation

    await router.sync.sync_once()
    table = (await router.store.read()).table
    assert table.keys[key.key.key_id].revoked
    assert {tenant.name for tenant in table.tenants.values()} == {"acme", "x", "y", "z"}


async def test_two_routers_that_repair_at_once_end_up_equal(
    router: RouterControl, second: RouterControl, redis: Redis
) -> None:
    await router.store.create_tenant("acme")
    await second.sync.sync_once()
    key = (await router.store.create_key("acme")).value
    await router.sync.sync_once()
    await router.store.create_tenant("globex")
    known = (await router.store.read()).table
    await router.sync.sync_once()
    await redis.delete(CONTROL_KEY)

    await asyncio.gather(router.sync.sync_once(), second.sync.sync_once())
    await asyncio.gather(router.sync.sync_once(), second.sync.sync_once())
    assert router.directory.state == second.directory.state
    assert router.directory.state.table == known
    assert second.directory.authenticate(key.text).name == "acme"


async def test_a_tenant_made_in_the_lost_store_under_a_taken_name_keeps_living_under_a_longer_one(
    router: RouterControl, second: RouterControl, redis: Redis
) -> None:
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    await redis.delete(CONTROL_KEY)
    second.clock.advance(60)
    made = (await second.store.create_tenant("acme")).value
    await router.sync.sync_once()
    await second.sync.sync_once()
    names = {tenant.name for tenant in second.directory.state.table.tenants.values()}
    assert names == {"acme", f"acme-{made.id[:8]}"}
    assert router.directory.state == second.directory.state


async def test_an_unchanged_store_is_not_written_by_polls(router: RouterControl, redis: Redis) -> None:
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    before = await raw_control(redis)
    await router.sync.sync_once()
    await RouterControl(redis, router.snapshot.path.parent).sync.sync_once()
    assert await raw_control(redis) == before


async def test_the_snapshot_is_private_and_follows_every_change(router: RouterControl) -> None:
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    path = router.snapshot.path
    assert path.stat().st_mode & 0o777 == 0o600
    assert router.snapshot.load() == router.directory.state
    await router.store.rotate_epoch("acme")
    await router.sync.sync_once()
    assert router.snapshot.load() == router.directory.state
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


async def test_a_forged_snapshot_stops_the_start(router: RouterControl, redis: Redis, tmp_path: Path) -> None:
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    path = router.snapshot.path
    path.write_bytes(path.read_bytes().replace(b'"name":"acme"', b'"name":"evil"'))
    with pytest.raises(CorruptDataError, match=f"MAC of the snapshot {path} .* move the file away"):
        RouterControl(redis, tmp_path / "a")


async def test_a_snapshot_of_another_master_key_stops_the_start(
    router: RouterControl, redis: Redis, tmp_path: Path
) -> None:
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    with pytest.raises(PreconditionError, match=MASTER.key_id):
        RouterControl(redis, tmp_path / "a", OTHER_MASTER)


async def test_a_snapshot_is_no_export_and_an_export_no_snapshot(router: RouterControl) -> None:
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    with pytest.raises(InvalidRequestError, match="no export"):
        await router.store.import_document(router.snapshot.path.read_bytes())
    router.snapshot.path.write_bytes(await router.store.export_document())
    with pytest.raises(CorruptDataError, match="no snapshot"):
        router.snapshot.load()


async def test_a_snapshot_that_cannot_be_written_stops_neither_service_nor_the_next_try(router: RouterControl) -> None:
    folder = router.snapshot.path.parent
    folder.write_bytes(b"in the way")
    await router.store.create_tenant("acme")
    await router.sync.sync_once()
    assert router.directory.tenant_by_name("acme").name == "acme"
    folder.unlink()
    await router.sync.sync_once()
    assert router.snapshot.load() == router.directory.state


async def test_the_task_polls_until_cancelled_and_says_what_is_wrong(router: RouterControl, redis: Redis) -> None:
    await redis.hset(CONTROL_KEY, "head", '{"schema":9}')
    task = asyncio.create_task(router.sync.run())
    await _until(lambda: router.sync.problem is not None)
    assert "version 9" in str(router.sync.problem)
    assert not router.directory.is_ready
    await redis.delete(CONTROL_KEY)
    await _until(lambda: router.directory.is_ready)
    assert router.sync.problem is None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
