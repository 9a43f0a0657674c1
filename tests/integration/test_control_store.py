"""The control store against real servers: rules of tenants and keys, export and import, refusals, contention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from cache_store.clock import ManualClock
from cache_store.domain import AdapterDigest
from cache_store.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    VersionError,
)
from services.tenants.adapter import LoadedAdapter
from services.tenants.api_key import matches, parse
from services.tenants.model import KeyId
from services.tenants.redis_connect import control_store
from services.tenants.redis_store import CONTROL_KEY, ControlStore, Imported
from services.tenants.state import CONTROL_SCHEMA
from tests.support.control import MASTER, OTHER_MASTER, operator_client, raw_control
from tests.support.redis_servers import RedisServer


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with operator_client(redis_server) as client:
        yield client


@pytest.fixture
def store(redis: Redis) -> ControlStore:
    return ControlStore(redis, MASTER, ManualClock())


async def test_a_fresh_store_is_empty(store: ControlStore) -> None:
    state = await store.read()
    assert (state.head, dict(state.table.tenants), await store.read_head_text()) == (None, {}, "")


async def test_what_is_written_is_read_back_equal(store: ControlStore) -> None:
    made = await store.create_tenant("acme")
    key = await store.create_key("acme")
    state = await store.read()
    assert state == key.state
    assert state.table.tenant_by_name("acme") == made.value
    assert state.generation == 2


async def test_a_call_that_is_cancelled_ends_so_whenever_that_is(redis_server: RedisServer) -> None:
    """Else what calls again and again goes on, and whoever waits for its end waits for ever."""
    async with control_store(redis_server.urls.operator, MASTER, ManualClock()) as store:
        await store.read_head_text()
        num_cancelled = 0
        for num_steps in range(60):
            call = asyncio.create_task(store.read_head_text())
            for _ in range(num_steps):
                await asyncio.sleep(0)
            num_cancelled += call.cancel()
            await asyncio.wait((call,))
            assert call.cancelled() or not call.cancelling(), f"it went on after {num_steps} steps"
        assert num_cancelled > 5


async def test_neither_secrets_nor_keys_stand_in_redis(store: ControlStore, redis: Redis) -> None:
    tenant = (await store.create_tenant("acme")).value
    key = (await store.create_key("acme")).value
    stored = b"".join((await raw_control(redis)).values())
    parsed = parse(key.text)
    assert parsed is not None
    assert matches(parsed, key.key.secret_hash)
    assert parsed.secret.encode() not in stored
    assert tenant.secret not in stored
    assert tenant.secret.hex().encode() not in stored


async def test_a_name_is_given_once_and_free_again_after_deletion(store: ControlStore) -> None:
    first = (await store.create_tenant("acme")).value
    with pytest.raises(AlreadyExistsError, match="acme"):
        await store.create_tenant("acme")
    await store.create_key("acme")
    state = (await store.delete_tenant("acme")).state
    assert not state.table.tenants
    assert not state.table.keys
    second = (await store.create_tenant("acme")).value
    assert second.id != first.id
    assert second.secret != first.secret


async def test_a_bad_name_is_refused_with_what_would_work(store: ControlStore) -> None:
    with pytest.raises(InvalidRequestError, match="lower case letters, digits and dashes"):
        await store.create_tenant("Acme Inc.")
    assert (await store.read()).head is None


@pytest.mark.parametrize("call", ["delete_tenant", "create_key", "rotate_epoch"])
async def test_what_is_absent_is_not_found(store: ControlStore, call: str) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await getattr(store, call)("nobody")


async def test_two_keys_live_and_a_third_needs_a_revocation(store: ControlStore) -> None:
    await store.create_tenant("acme")
    first = (await store.create_key("acme")).value
    await store.create_key("acme")
    with pytest.raises(PreconditionError, match="revoke one"):
        await store.create_key("acme")
    await store.revoke_key(first.key.key_id)
    third = await store.create_key("acme")
    assert third.state.table.num_live_keys(third.value.key.tenant) == 2


async def test_the_limit_of_keys_is_per_tenant(store: ControlStore) -> None:
    for name in ("acme", "globex"):
        await store.create_tenant(name)
        await store.create_key(name)
        await store.create_key(name)
    assert len((await store.read()).table.keys) == 4


async def test_revoking_twice_changes_nothing_and_an_unknown_key_is_not_found(store: ControlStore) -> None:
    await store.create_tenant("acme")
    key_id = (await store.create_key("acme")).value.key.key_id
    once = await store.revoke_key(key_id)
    twice = await store.revoke_key(key_id)
    assert once.state == twice.state
    with pytest.raises(NotFoundError):
        await store.revoke_key(KeyId("aaaaaaaaaaaaaaaa"))


async def test_a_rotation_changes_the_epoch_and_nothing_else(store: ControlStore) -> None:
    before = (await store.create_tenant("acme")).value
    after = (await store.rotate_epoch("acme")).value
    again = (await store.rotate_epoch("acme")).value
    assert len({before.epoch, after.epoch, again.epoch}) == 3
    assert (after.id, after.secret, after.name) == (before.id, before.secret, before.name)


async def test_writers_of_several_processes_lose_nothing(redis: Redis) -> None:
    stores = [ControlStore(redis, MASTER, ManualClock()) for _ in range(12)]
    made = await asyncio.gather(*(store.create_tenant(f"tenant-{i}") for i, store in enumerate(stores)))
    state = await stores[0].read()
    assert {tenant.name for tenant in state.table.tenants.values()} == {f"tenant-{i}" for i in range(12)}
    assert sorted(one.state.generation for one in made) == list(range(1, 13))


async def test_two_writers_of_one_name_make_one_tenant(redis: Redis) -> None:
    stores = [ControlStore(redis, MASTER, ManualClock()) for _ in range(2)]
    results = await asyncio.gather(*(store.create_tenant("acme") for store in stores), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["AlreadyExistsError", "Committed"]


async def test_concurrent_key_makers_stay_within_the_limit(redis: Redis) -> None:
    stores = [ControlStore(redis, MASTER, ManualClock()) for _ in range(5)]
    await stores[0].create_tenant("acme")
    results = await asyncio.gather(*(store.create_key("acme") for store in stores), return_exceptions=True)
    assert sum(isinstance(result, PreconditionError) for result in results) == 3
    assert len((await stores[0].read()).table.keys) == 2


async def test_an_export_comes_back_into_an_empty_store(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme")
    await store.create_tenant("gone")
    await store.delete_tenant("gone")
    revoked = (await store.create_key("acme")).value
    await store.create_key("acme")
    await store.revoke_key(revoked.key.key_id)
    table = (await store.rotate_epoch("acme")).state.table
    document = await store.export_document()

    await redis.delete(CONTROL_KEY)
    imported = await store.import_document(document)
    assert imported.value == Imported(num_tenants=1, num_keys=2)
    assert (await store.read()).table == table
    assert (await store.import_document(document)).value == Imported(0, 0)


async def test_an_old_export_revives_nothing(store: ControlStore) -> None:
    await store.create_tenant("acme")
    await store.create_tenant("globex")
    key_id = (await store.create_key("acme")).value.key.key_id
    document = await store.export_document()
    await store.revoke_key(key_id)
    epoch = (await store.rotate_epoch("acme")).value.epoch
    await store.delete_tenant("globex")

    table = (await store.import_document(document)).state.table
    assert table.keys[key_id].revoked
    assert table.tenant_by_name("acme").epoch == epoch
    assert [tenant.name for tenant in table.tenants.values()] == ["acme"]


async def test_an_import_over_a_taken_name_changes_nothing(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme")
    document = await store.export_document()
    await redis.delete(CONTROL_KEY)
    await store.create_tenant("acme")
    before = await raw_control(redis)
    with pytest.raises(AlreadyExistsError, match="acme"):
        await store.import_document(document)
    assert await raw_control(redis) == before


async def test_a_document_of_another_master_key_changes_nothing(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme")
    document = await store.export_document()
    await redis.delete(CONTROL_KEY)
    other = ControlStore(redis, OTHER_MASTER, ManualClock())
    with pytest.raises(PreconditionError, match=MASTER.key_id):
        await other.import_document(document)
    assert await raw_control(redis) == {}


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (b'"name":"acme"', b'"name":"acne"', InvalidRequestError),
        (b'"revoked":true', b'"revoked":false', InvalidRequestError),
        (b'"schema":4,"store_id"', b'"schema":5,"store_id"', InvalidRequestError),
        (b'"schema":4}', b'"schema":5}', VersionError),
        (b'"schema":4}', b'"schema":3}', InvalidRequestError),
        (b"{", b"[", InvalidRequestError),
    ],
)
async def test_a_changed_document_changes_nothing(
    store: ControlStore, redis: Redis, old: bytes, new: bytes, error: type[Exception]
) -> None:
    await store.create_tenant("acme")
    await store.revoke_key((await store.create_key("acme")).value.key.key_id)
    document = await store.export_document()
    changed = document.replace(old, new, 1)
    assert changed != document
    await redis.delete(CONTROL_KEY)
    with pytest.raises(error):
        await store.import_document(changed)
    assert await raw_control(redis) == {}


async def test_a_store_of_another_master_key_is_refused(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme")
    before = await raw_control(redis)
    other = ControlStore(redis, OTHER_MASTER, ManualClock())
    with pytest.raises(PreconditionError, match=f"{MASTER.key_id}.*{OTHER_MASTER.key_id}"):
        await other.read()
    with pytest.raises(PreconditionError):
        await other.create_tenant("globex")
    assert await raw_control(redis) == before


async def test_a_store_of_another_schema_is_refused_by_name(store: ControlStore, redis: Redis) -> None:
    await store.create_tenant("acme")
    head = (await raw_control(redis))[b"head"]
    later = head.replace(f'"schema":{CONTROL_SCHEMA}'.encode(), b'"schema":7')
    assert later != head
    await redis.hset(CONTROL_KEY, "head", later)
    before = await raw_control(redis)
    with pytest.raises(VersionError, match=f"version 7, this build speaks version {CONTROL_SCHEMA}"):
        await store.create_tenant("globex")
    assert await raw_control(redis) == before


async def test_a_secret_moved_to_another_tenant_does_not_open(store: ControlStore, redis: Redis) -> None:
    acme = (await store.create_tenant("acme")).value
    globex = (await store.create_tenant("globex")).value
    stored = await raw_control(redis)
    await redis.hset(CONTROL_KEY, f"tenant:{globex.id}", stored[f"tenant:{acme.id}".encode()])
    with pytest.raises(CorruptDataError, match=globex.id):
        await store.read()


@pytest.mark.parametrize("value", [b"", b"not json", b"[]", b'{"tenant": 3}', b"\xff\xfe"])
async def test_a_damaged_record_is_named(store: ControlStore, redis: Redis, value: bytes) -> None:
    await store.create_tenant("acme")
    await redis.hset(CONTROL_KEY, "key:abc", value)
    with pytest.raises(CorruptDataError, match="key:abc"):
        await store.read()


async def test_rewrapping_keeps_everything_and_locks_the_old_key_out(store: ControlStore, redis: Redis) -> None:
    tenant = (await store.create_tenant("acme")).value
    await store.create_key("acme")
    table = (await store.read()).table
    await store.rewrap(OTHER_MASTER)
    rewrapped = await ControlStore(redis, OTHER_MASTER, ManualClock()).read()
    assert rewrapped.table == table
    assert rewrapped.table.tenants[tenant.id].secret == tenant.secret
    with pytest.raises(PreconditionError, match="master key"):
        await store.read()


async def test_a_server_that_is_away_is_unavailable() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    with pytest.raises(UnavailableError, match="out of reach"):
        await ControlStore(client, MASTER, ManualClock()).read()
    await client.aclose()


async def test_a_user_without_rights_is_told_so(redis_server: RedisServer) -> None:
    client = Redis.from_url(redis_server.urls.worker)
    with pytest.raises(PreconditionError, match="permission"):
        await ControlStore(client, MASTER, ManualClock()).read()
    await client.aclose()


async def test_adapters_survive_in_the_store_and_in_a_document(store: ControlStore) -> None:
    mine = LoadedAdapter("mine", "m", "/mine", AdapterDigest(b"d" * 32), None, 0, 0.0)
    change = await store.load_adapter(mine)
    loaded = change.after.table.adapters["mine"]
    assert (loaded.digest, loaded.number) == (mine.digest, 1)
    assert (await store.read()).table == change.after.table
    assert (await store.load_adapter(mine)).after is not None
    assert (await store.read()).generation == change.after.generation, "the same content is no change"
    document = await store.export_document()
    await store.unload_adapter("mine")
    await store.import_document(document)
    assert not (await store.read()).table.adapters["mine"].is_loaded, "what was unloaded stays so"
    with pytest.raises(NotFoundError):
        await store.unload_adapter("mine")
