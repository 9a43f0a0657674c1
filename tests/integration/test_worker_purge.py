"""Purges at a worker, as routers ask for them: real gRPC on loopback, real Redis, real engine."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import grpc
import pytest
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import SystemClock
from cache_store.digest import chain
from cache_store.domain import Domain
from cache_store.fence import Fence, FenceNotice
from cache_store.fence_document import sign_notice
from cache_store.quota import QuotaTable
from cache_store.redis_index import RedisIndexReader
from cache_store.redis_quotas import RedisQuotas
from cache_store.redis_registry import RedisRegistryReader
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from cache_store.tokens import pack
from services.cluster.redis_roles import RedisRole
from tests.support.fences import fenced_domain, make_fence
from tests.support.quotas import quota_document
from tests.support.redis_servers import RedisServer
from tests.support.worker_host import (
    CLUSTER_KEY,
    DIGEST_FORMAT,
    Execution,
    WorkerClient,
    client_of,
    digest_config,
)
from tests.support.worker_process import worker_process
from worker.build import build_runner, connect_stores
from worker.config import WorkerConfig
from worker.digest_rule import POISON
from worker.digest_runner import DigestRunner
from worker.engine import Engine
from worker.host import WorkerHost, WorkerParts
from worker.runner import Runner

PROMPT = list(range(1, 101))
NUM_BLOCKS = len(PROMPT) // 16
OLD, NEW, GLOBEX_FENCE = make_fence("acme"), make_fence("acme", 1), make_fence("globex")


def domain_of(fence: Fence, partition: str = "") -> Domain:
    return fenced_domain(fence, partition, DIGEST_FORMAT)


ACME, ACME_NEW, GLOBEX = domain_of(OLD), domain_of(NEW), domain_of(GLOBEX_FENCE)


@dataclass
class Cluster:
    """One worker, Redis, and who asks as routers do."""

    host: WorkerHost
    client: WorkerClient
    server: RedisServer
    runners: list[Runner] = field(default_factory=list)

    async def run(self, domain: Domain, fence: Fence = OLD, generation: int = 1, prompt: Sequence[int] = PROMPT) -> int:
        """Cached tokens of a request whose router knew that fence."""
        return (await self.client.run(self.message(domain, fence, generation, prompt))).cached_tokens

    def message(
        self, domain: Domain, fence: Fence = OLD, generation: int = 1, prompt: Sequence[int] = PROMPT
    ) -> worker_pb2.ExecuteRequest:
        message = self.client.message(domain, prompt)
        message.request_token = self.client.token(domain, fence_order=fence.order, control_generation=generation)
        return message

    async def purge(self, fence: Fence, generation: int = 2) -> worker_pb2.PurgeResponse:
        return await self.tell(sign_notice(CLUSTER_KEY, FenceNotice(fence.tenant, fence, generation)))

    async def tell(self, notice: bytes) -> worker_pb2.PurgeResponse:
        request = worker_pb2.PurgeRequest(protocol_version=PROTOCOL_VERSION, fence=notice)
        response: worker_pb2.PurgeResponse = await self.client.stub.Purge(request, timeout=20)
        return response

    async def publish(self, generation: int, *fences: Fence) -> None:
        await publish(self.server, generation, *fences)

    async def num_indexed(self, domain: Domain) -> int:
        return await num_indexed(self.server, domain, self.host.incarnation)

    def num_written_slots(self) -> int:
        """Slots of the device in which anything stands."""
        (runner,) = self.runners
        assert isinstance(runner, DigestRunner)
        return sum(int((pool != POISON).any(axis=(1, 2)).sum()) for pool in runner.pools)

    async def check(self) -> int:
        """The engine's invariants; how many blocks are held."""

        def read(engine: Engine) -> int:
            engine.check_invariants()
            return engine.num_held_blocks

        return await self.host.thread.call(read, 10)


async def publish(server: RedisServer, generation: int, *fences: Fence) -> None:
    """What a router publishes."""
    quotas = QuotaTable(generation, MappingProxyType({}))
    async with server.session(RedisRole.OPERATOR) as session:
        redis = RedisQuotas(session)
        await redis.write(await redis.read_head(), quota_document(CLUSTER_KEY, "s", quotas, time.time(), fences))


async def num_indexed(server: RedisServer, domain: Domain, incarnation: str) -> int:
    digests = b"".join(chain(domain, pack(PROMPT), 16))
    async with server.session(RedisRole.ROUTER) as session:
        found = await RedisIndexReader(session, deadline_s=5.0).lookup(domain.tag, digests, [incarnation])
    return found[incarnation]


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s, "did not come true"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def running(server: RedisServer) -> AsyncIterator[Cluster]:
    runners: list[Runner] = []

    def build(config: WorkerConfig) -> Runner:
        runners.append(build_runner(config))
        return runners[-1]

    config = digest_config(redis_url=server.urls.worker)
    host = await WorkerHost.start(config, WorkerParts(build, connect_stores, SystemClock()))
    async with client_of(host) as client:
        yield Cluster(host, client, server, runners)
    await host.stop()


@pytest.fixture
async def cluster(redis_server: RedisServer) -> AsyncIterator[Cluster]:
    async with running(redis_server) as cluster:
        yield cluster


async def test_a_purge_empties_the_tenants_cache_its_index_and_its_slots_and_nobody_elses(cluster: Cluster) -> None:
    for domain in (ACME, GLOBEX):
        await cluster.run(domain)
        await until(lambda domain=domain: _is(cluster.num_indexed(domain), NUM_BLOCKS))
    response = await cluster.purge(NEW)
    assert response.incarnation == cluster.host.incarnation
    assert (response.purged_blocks.device_blocks, response.held_blocks) == (NUM_BLOCKS, 0)
    assert await cluster.run(ACME_NEW, NEW, 2, PROMPT) == 0
    assert await cluster.run(ACME_NEW, NEW, 2, PROMPT) == 96
    assert await cluster.run(GLOBEX) == 96
    await until(lambda: _is(cluster.num_indexed(ACME), 0))
    assert not cluster.server.key_names(f"*{ACME.tag.hex()}*")
    assert await cluster.num_indexed(GLOBEX) == NUM_BLOCKS
    assert await cluster.check() == 0
    assert (await cluster.purge(make_fence("acme", 2))).purged_blocks.device_blocks == NUM_BLOCKS


async def test_the_slots_of_what_was_purged_are_blank_soon(cluster: Cluster) -> None:
    await cluster.run(ACME)
    assert cluster.num_written_slots() > NUM_BLOCKS
    await cluster.purge(NEW)
    await until(lambda: _is(_of(cluster.num_written_slots()), 0))


async def test_a_request_that_runs_meanwhile_is_unharmed_and_leaves_nothing(cluster: Cluster) -> None:
    prompt = PROMPT[:40]
    expected = await cluster.client.run(_long(cluster, GLOBEX, prompt))
    call = asyncio.ensure_future(cluster.client.run(_long(cluster, ACME, prompt)))

    async def holds() -> bool:
        return await cluster.check() > 2

    await until(holds)
    response = await cluster.purge(NEW)
    execution: Execution = await call
    assert execution.tokens == expected.tokens
    assert not response.counts_pending
    assert await cluster.run(ACME_NEW, NEW, 2, prompt) == 0
    await cluster.purge(make_fence("acme", 2))
    await cluster.purge(make_fence("globex", 1))
    await until(lambda: _is(_of(cluster.num_written_slots()), 0))
    assert await cluster.check() == 0


def _long(cluster: Cluster, domain: Domain, prompt: Sequence[int]) -> worker_pb2.ExecuteRequest:
    message = cluster.message(domain, prompt=prompt)
    message.sampling.max_tokens = 3_000
    return message


async def test_a_router_that_is_behind_gets_an_answer_without_reuse_and_stores_nothing(cluster: Cluster) -> None:
    await cluster.run(ACME)
    await cluster.purge(NEW)
    for _ in range(2):
        assert await cluster.run(ACME) == 0
    assert await cluster.num_indexed(ACME) == 0
    lookup = worker_pb2.LookupPrefixRequest(
        protocol_version=PROTOCOL_VERSION, request_token=cluster.client.token(ACME), prompt=pack(PROMPT)
    )
    assert (await cluster.client.stub.LookupPrefix(lookup, timeout=20)).matched_tokens == 0
    await until(lambda: _is(_of(cluster.num_written_slots()), 0))


async def test_what_comes_late_leaves_no_bytes_at_a_worker_that_had_none_of_them(cluster: Cluster) -> None:
    await cluster.purge(NEW)
    await cluster.tell(sign_notice(CLUSTER_KEY, FenceNotice(GLOBEX.tenant, None, 2)))
    for domain in (ACME, GLOBEX):
        assert await cluster.run(domain) == 0
    await until(lambda: _is(_of(cluster.num_written_slots()), 0))
    await cluster.run(ACME_NEW, NEW, 2)
    assert cluster.num_written_slots() > NUM_BLOCKS


async def test_a_notice_without_the_clusters_mac_or_of_another_protocol_changes_nothing(cluster: Cluster) -> None:
    await cluster.run(ACME)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cluster.tell(sign_notice(b"x" * 32, FenceNotice(NEW.tenant, NEW, 2)))
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cluster.tell(b"")
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    notice = sign_notice(CLUSTER_KEY, FenceNotice(NEW.tenant, NEW, 2))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cluster.client.stub.Purge(
            worker_pb2.PurgeRequest(protocol_version=PROTOCOL_VERSION + 1, fence=notice), timeout=20
        )
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert await cluster.run(ACME) == 96


async def test_an_old_notice_that_is_put_back_changes_nothing(cluster: Cluster) -> None:
    await cluster.purge(NEW)
    await cluster.run(ACME_NEW, NEW, 2)
    response = await cluster.purge(OLD, generation=9)
    assert response.purged_blocks.device_blocks == 0
    assert await cluster.run(ACME_NEW, NEW, 2) == 96
    assert await cluster.run(ACME, OLD, 9) == 0


async def test_published_fences_purge_what_they_leave_behind_and_tenants_that_they_do_not_list(
    cluster: Cluster,
) -> None:
    partition = domain_of(OLD, "p")
    for domain in (ACME, partition, GLOBEX):
        await cluster.run(domain)
    marked = make_fence("acme", 0, {"p": 1})
    await cluster.publish(5, marked, GLOBEX_FENCE)
    await until(lambda: _is(cluster.num_indexed(partition), 0))
    assert await cluster.run(ACME, marked, 5) == 96
    assert await cluster.run(domain_of(marked, "p"), marked, 5) == 0
    assert await cluster.run(GLOBEX, GLOBEX_FENCE, 5) == 96
    await cluster.publish(6, marked)
    await until(lambda: _is(cluster.num_indexed(GLOBEX), 0))
    assert await cluster.run(GLOBEX, GLOBEX_FENCE, 5) == 0
    assert await cluster.run(GLOBEX, GLOBEX_FENCE, 6) == 0
    assert await cluster.run(ACME, marked, 6) == 96
    uses = await cluster.host.thread.call(lambda engine: engine.usage(), 10)
    assert GLOBEX.tenant not in {use.tenant for use in uses if use.used_blocks}


async def test_a_tenant_that_is_younger_than_the_published_fences_is_served(cluster: Cluster) -> None:
    await cluster.publish(5, GLOBEX_FENCE)
    await until(lambda: _is(_of(cluster.host.record().quota_generation), 5))
    assert await cluster.run(ACME, OLD, 6) == 0
    assert await cluster.run(ACME, OLD, 6) == 96
    await cluster.publish(6, GLOBEX_FENCE, OLD)
    await until(lambda: _is(_of(cluster.host.record().quota_generation), 6))
    assert await cluster.run(ACME, OLD, 6) == 96


async def test_a_worker_that_was_stopped_meanwhile_drops_on_its_return_what_was_purged(
    redis_server: RedisServer,
) -> None:
    async with worker_process("w", redis_server.urls.worker, CLUSTER_KEY) as process:
        record = await _joined(redis_server)
        async with WorkerClient(record.address, record.incarnation) as client:
            await publish(redis_server, 5, OLD, GLOBEX_FENCE)
            await until(lambda: _has_generation(redis_server, 5))
            for domain in (ACME, GLOBEX):
                await client.execute(domain, PROMPT)
                await until(
                    lambda domain=domain: _is(num_indexed(redis_server, domain, record.incarnation), NUM_BLOCKS)
                )
            process.send_signal(signal.SIGSTOP)
            await publish(redis_server, 6, NEW, GLOBEX_FENCE)
            assert await num_indexed(redis_server, ACME, record.incarnation) == NUM_BLOCKS
            process.send_signal(signal.SIGCONT)
            await until(lambda: _is(num_indexed(redis_server, ACME, record.incarnation), 0))
            assert (await client.execute(ACME, PROMPT)).cached_tokens == 0
            assert (await client.execute(GLOBEX, PROMPT)).cached_tokens == 96
            assert await num_indexed(redis_server, ACME, record.incarnation) == 0


async def _joined(server: RedisServer) -> WorkerRecord:
    async with server.session(RedisRole.ROUTER) as session:
        registry = RedisRegistryReader(session)

        async def is_there() -> bool:
            return bool(await registry.workers())

        await until(is_there, 60.0)
        (record,) = await registry.workers()
        return record


async def _has_generation(server: RedisServer, generation: int) -> bool:
    return (await _joined(server)).quota_generation == generation


async def _is(value: Awaitable[int], expected: int) -> bool:
    return await value == expected


async def _of(value: int) -> int:
    return value
