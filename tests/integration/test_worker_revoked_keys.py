"""A worker does not believe routers that have long missed that a key was revoked: real gRPC, real Redis."""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType

import grpc
import pytest

from cache_store.clock import SystemClock
from cache_store.fence import FenceTable
from cache_store.quota import QuotaTable
from cache_store.quota_document import Published, write_published
from cache_store.redis_quotas import RedisQuotas
from cache_store.request_token import sign, verify
from services.cluster.redis_roles import RedisRole
from tests.support.redis_servers import RedisServer
from tests.support.router_host import eventually
from tests.support.worker_host import CLUSTER_KEY, WorkerClient, client_of, digest_config, digest_domain
from worker import rpc_purge
from worker.build import build_runner, connect_stores
from worker.host import WorkerHost, WorkerParts

ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")


async def publish(server: RedisServer, num_revoked_keys: int) -> None:
    table = FenceTable(2, revoked_keys=MappingProxyType({ACME.tenant: num_revoked_keys}))
    published = Published(QuotaTable(2, MappingProxyType({})), table)
    async with server.session(RedisRole.OPERATOR) as session:
        redis = RedisQuotas(session)
        await redis.write(await redis.read_head(), write_published(CLUSTER_KEY, "s", published, time.time()))


async def ask(client: WorkerClient, host: WorkerHost, num_revoked_keys: int) -> None:
    message = client.message(ACME, range(1, 40))
    claims = verify(CLUSTER_KEY, message.request_token, host.incarnation, time.time())
    message.request_token = sign(CLUSTER_KEY, replace(claims, num_revoked_keys=num_revoked_keys))
    await client.run(message)


async def test_who_has_missed_it_is_sent_elsewhere(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_purge, "REVOKED_AFTER_S", 0.0)
    parts = WorkerParts(build_runner, connect_stores, SystemClock())
    host = await WorkerHost.start(digest_config("w", redis_server.urls.worker), parts)
    try:
        async with client_of(host) as client:
            await ask(client, host, 0)
            await publish(redis_server, 1)
            await eventually(lambda: host.record().quota_generation == 2)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ask(client, host, 0)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            await ask(client, host, 1)
            await client.execute(GLOBEX, range(1, 40))
    finally:
        await host.stop()
