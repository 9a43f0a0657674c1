"""Control data over servers that stop, restart, lose their folder, go back to an old one, or stop answering."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cache_store.clock import ManualClock
from cache_store.errors import UnauthenticatedError, UnavailableError
from services.cluster.valkey import EmbeddedValkey
from services.tenants import redis_store
from services.tenants.directory import CONTROL_AGE_BOUND_S
from services.tenants.redis_store import ControlStore
from tests.support.control import MASTER, RouterControl, operator_client
from tests.support.held_redis import HeldRedis
from tests.support.redis_servers import RedisServer


def server_of(valkey: EmbeddedValkey) -> RedisServer:
    return RedisServer("valkey", valkey.urls)


async def test_while_redis_is_away_the_table_serves_and_grows_old(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            router = RouterControl(redis, tmp_path / "a")
            await router.store.create_tenant("acme")
            key = (await router.store.create_key("acme")).value.text
            await router.sync.sync_once()
            server.stop()
            router.clock.advance(CONTROL_AGE_BOUND_S)
            with pytest.raises(UnavailableError):
                await router.sync.sync_once()
            assert router.directory.authenticate(key).name == "acme"
            assert not router.directory.is_stale
            router.clock.advance(1)
            assert router.directory.is_stale
            assert router.directory.age_s() == CONTROL_AGE_BOUND_S + 1
            assert router.directory.authenticate(key).name == "acme"


async def test_tenants_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            written = (await RouterControl(redis, tmp_path / "a").store.create_tenant("acme")).state
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            assert await RouterControl(redis, tmp_path / "b").store.read() == written


async def test_tenants_survive_a_server_that_was_killed(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            written = (await RouterControl(redis, tmp_path / "a").store.create_tenant("acme")).state
        os.kill(server.pid, signal.SIGKILL)
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            assert await RouterControl(redis, tmp_path / "b").store.read() == written


async def test_a_server_that_comes_back_empty_is_filled_from_the_snapshot(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            router = RouterControl(redis, tmp_path / "a")
            await router.store.create_tenant("acme")
            key = (await router.store.create_key("acme")).value.text
            await router.sync.sync_once()
    shutil.rmtree(tmp_path / "valkey")
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            started = RouterControl(redis, tmp_path / "a")
            await started.sync.sync_once()
            assert started.directory.authenticate(key).name == "acme"
            assert (await started.store.read()).table == router.directory.state.table


async def test_a_server_that_comes_back_from_an_old_folder_revives_nothing(tmp_path: Path) -> None:
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            store = ControlStore(redis, MASTER, ManualClock())
            await store.create_tenant("acme")
            key = (await store.create_key("acme")).value
    shutil.copytree(tmp_path / "valkey", tmp_path / "old")
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            router = RouterControl(redis, tmp_path / "a")
            await router.store.revoke_key(key.key.key_id)
            epoch = (await router.store.rotate_epoch("acme")).value.epoch
            await router.sync.sync_once()
    shutil.rmtree(tmp_path / "valkey")
    shutil.move(tmp_path / "old", tmp_path / "valkey")
    with EmbeddedValkey.start(tmp_path) as server:
        async with operator_client(server_of(server)) as redis:
            started = RouterControl(redis, tmp_path / "a")
            assert not (await started.store.read()).table.keys[key.key.key_id].revoked
            await started.sync.sync_once()
            assert (await started.store.read()).table.keys[key.key.key_id].revoked
            assert started.directory.tenant_by_name("acme").epoch == epoch
            with pytest.raises(UnauthenticatedError):
                started.directory.authenticate(key.text)


async def test_a_cancelled_call_leaves_its_answer_to_nobody(redis_server: RedisServer, tmp_path: Path) -> None:
    async with HeldRedis(redis_server.urls.operator, tmp_path / "held.sock") as held:
        client = Redis.from_url(held.url, single_connection_client=True)
        store = ControlStore(client, MASTER, ManualClock())
        written = (await store.create_tenant("acme")).state
        held.hold()
        asked = asyncio.create_task(store.read_head_text())
        await held.until_an_answer_is_held()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        held.release()
        assert await store.read() == written
        await client.aclose()


async def test_a_server_that_does_not_answer_is_unavailable_and_leaves_no_answer_behind(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with HeldRedis(redis_server.urls.operator, tmp_path / "held.sock") as held:
        client = Redis.from_url(held.url, single_connection_client=True)
        store = ControlStore(client, MASTER, ManualClock())
        written = (await store.create_tenant("acme")).state
        monkeypatch.setattr(redis_store, "CALL_DEADLINE_S", 0.05)
        held.hold()
        with pytest.raises(UnavailableError, match="did not answer"):
            await store.read_head_text()
        held.release()
        monkeypatch.undo()
        assert await store.read() == written
        await client.aclose()
