"""The master key is exchanged, a step at a time, while routers and workers start anew one by one: all are answered."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from cache_store.clock import SystemClock
from cache_store.errors import PreconditionError
from services.cli.master_key import Step, after
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.router.app import Router
from services.tenants.master_key import MasterKey, cluster_key, to_text
from services.tenants.redis_connect import control_store
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    MASTER,
    Tenant,
    eventually,
    new_tenant,
    router_settings,
    running,
    start_worker,
    tokens_request,
    until_served,
)
from worker.host import WorkerHost

PROMPT = list(range(10, 90))


@asynccontextmanager
async def router_with(
    urls: RoleUrls, folder: Path, master: MasterKey, key: str, num_workers: int
) -> AsyncIterator[tuple[Router, Tenant]]:
    """A router that knows its workers, and a tenant there."""
    settings = dataclasses.replace(router_settings(urls, folder), master_key=to_text(master))
    async with running(settings, SystemClock()) as router, grpc.aio.insecure_channel(router.address) as channel:
        tenant = Tenant("acme", key, channel)
        await until_served(tenant, num_workers)
        yield router, tenant


class Rolling:
    """Two routers and two workers, each of which is started again with what the file says now."""

    def __init__(self, urls: RoleUrls, folder: Path, key: str) -> None:
        self.urls, self.folder, self.key = urls, folder, key
        self.routers: dict[str, tuple[AsyncExitStack, Router, Tenant]] = {}
        self.workers: dict[str, WorkerHost] = {}

    async def restart_router(self, name: str, master: MasterKey) -> None:
        if name in self.routers:
            await self.routers.pop(name)[0].aclose()
        stack = AsyncExitStack()
        made = router_with(self.urls, self.folder / name, master, self.key, len(self.workers))
        self.routers[name] = (stack, *await stack.enter_async_context(made))

    async def restart_worker(self, name: str, master: MasterKey) -> None:
        if name in self.workers:
            host = self.workers.pop(name)
            await host.drain(1.0)
            await host.stop()
        self.workers[name] = await start_worker(self.urls, name, cluster_key=cluster_key(master))
        incarnations = {each.record().incarnation for each in self.workers.values()}
        for _, router, _ in self.routers.values():
            view = router._parts.view
            await eventually(lambda view=view: incarnations <= {each.incarnation for each in view.records()})

    async def ask_all(self) -> list[tuple[int, ...]]:
        """Two requests at each router; the second one finds what the first one left, wherever that was."""
        answers = []
        for _, _, tenant in self.routers.values():
            for _ in range(2):
                answer = await tenant.generate(tokens_request(PROMPT))
                answers.append(tuple(answer.completions[0].token_ids.packed))
            assert answer.usage.cached_tokens == len(PROMPT) - 1
        return answers

    async def close(self) -> None:
        for stack, _, _ in self.routers.values():
            await stack.aclose()
        for host in self.workers.values():
            await host.stop()


def steps() -> Iterator[MasterKey]:
    master = MASTER
    for step in Step:
        master = after(master, step)
        yield master


async def test_no_request_fails_and_nothing_is_lost(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    key = await new_tenant(urls, "acme")
    rolling = Rolling(urls, tmp_path, key)
    try:
        for name in ("a", "b"):
            await rolling.restart_worker(f"worker-{name}", MASTER)
            await rolling.restart_router(name, MASTER)
        answers = set(await rolling.ask_all())
        for master in steps():
            for name in ("a", "b"):
                await rolling.restart_router(name, master)
                answers |= set(await rolling.ask_all())
            for name in ("a", "b"):
                await rolling.restart_worker(f"worker-{name}", master)
                answers |= set(await rolling.ask_all())
    finally:
        await rolling.close()
    assert len(answers) == 1, "one domain, one answer"
    assert master.other is None
    async with control_store(urls.operator, master, SystemClock()) as store:
        assert [tenant.name for tenant in (await store.read()).table.tenants.values()] == ["acme"]
    async with control_store(urls.operator, MASTER, SystemClock()) as store:
        with pytest.raises(PreconditionError, match="master key"):
            await store.read()


async def test_a_key_that_was_retired_signs_nothing(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    """A router that still has the old key alone gets nothing from workers that have the new one alone."""
    urls = server_named(request, "valkey").urls
    key = await new_tenant(urls, "acme")
    host = await start_worker(urls, "worker-a", cluster_key=cluster_key(list(steps())[-1]))
    try:
        async with router_with(urls, tmp_path / "old", MASTER, key, 1) as (_, tenant):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await tenant.generate(tokens_request(PROMPT))
            assert caught.value.code() is not grpc.StatusCode.OK
    finally:
        await host.stop()
