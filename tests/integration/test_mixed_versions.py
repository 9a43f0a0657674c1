"""An upgrade halfway: routers and workers of two protocol versions on one Redis. Each serves with its own kind.

What does not fit is refused by its name, on both sides; nobody gets a wrong answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2, admin_pb2_grpc

from cache_store.registry import PROTOCOL_VERSION
from services.cluster.redis_roles import RoleUrls
from services.cluster.router_part import free_port
from services.cluster.valkey import EmbeddedValkey
from services.tenants.master_key import cluster_key
from tests.support.old_version import OLD
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    MASTER,
    MODEL,
    Cluster,
    Tenant,
    eventually_async,
    router_settings,
    running_cluster,
    tokens_request,
)

ROOT = Path(__file__).parents[2]
PROMPT = list(range(100, 180))
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@asynccontextmanager
async def old_process(module: str, environment: dict[str, str], told: bytes = b"") -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.old_version", module, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env=environment,
    )  # fmt: skip
    reading = asyncio.create_task(process.communicate(told))
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await reading


@asynccontextmanager
async def old_router(urls: RoleUrls, folder: Path) -> AsyncIterator[tuple[str, str]]:
    settings = router_settings(urls, folder)
    address, admin = (f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2))
    environment = ENVIRONMENT | {
        "STEMCACHE_REDIS_URL": urls.router,
        "STEMCACHE_CONTROL_REDIS_URL": urls.operator,
        "STEMCACHE_MASTER_KEY": MASTER.raw.hex(),
        "STEMCACHE_ADMIN_TOKEN_FILE": str(settings.admin_token_file),
        "STEMCACHE_LISTEN": address,
        "STEMCACHE_ADMIN_LISTEN": admin,
        "STEMCACHE_MODELS": f"{MODEL}={settings.models[MODEL]}",
        "STEMCACHE_DATA_DIR": str(folder),
    }
    async with old_process("services.router", environment):
        yield address, admin


@asynccontextmanager
async def old_worker(urls: RoleUrls) -> AsyncIterator[None]:
    told = {"worker_id": "veteran", "redis_url": urls.worker, "cluster_key": cluster_key(MASTER).hex()}
    async with old_process("tests.chaos.worker_main", ENVIRONMENT, json.dumps(told).encode()):
        yield


async def refusals(admin_address: str) -> list[str]:
    """Workers that a router refuses, and why."""
    async with grpc.aio.insecure_channel(admin_address) as channel:
        stub = admin_pb2_grpc.ClusterServiceStub(channel)
        try:
            status = await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=5.0, metadata=ADMIN_METADATA)
        except grpc.aio.AioRpcError:
            return []
    return list(status.refused_workers)


async def test_each_version_serves_with_its_own_and_refuses_the_other_by_name(urls: RoleUrls, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        new: Cluster = await stack.enter_async_context(running_cluster(urls, tmp_path / "new"))
        await stack.enter_async_context(old_worker(urls))
        address, admin = await stack.enter_async_context(old_router(urls, tmp_path / "old"))

        async def both_refuse() -> bool:
            return bool(await refusals(new.router.admin_address)) and bool(await refusals(admin))

        await eventually_async(both_refuse, 30.0)
        assert await refusals(new.router.admin_address) == [
            f"veteran: its worker protocol has version {OLD}, this router speaks version {PROTOCOL_VERSION}"
        ]
        assert await refusals(admin) == [
            f"worker-0: its worker protocol has version {PROTOCOL_VERSION}, this router speaks version {OLD}"
        ]
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        old = Tenant("acme", new.acme.key, channel)
        answers = [await each.generate(tokens_request(PROMPT)) for each in (new.acme, old)]
        assert answers[0].completions == answers[1].completions


async def test_an_old_router_with_new_workers_only_says_that_it_cannot_serve(urls: RoleUrls, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        new = await stack.enter_async_context(running_cluster(urls, tmp_path / "new"))
        address, admin = await stack.enter_async_context(old_router(urls, tmp_path / "old"))

        async def refuses() -> bool:
            return bool(await refusals(admin))

        await eventually_async(refuses, 30.0)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Tenant("acme", new.acme.key, channel).generate(tokens_request(PROMPT))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
