"""A whole cluster in this process: a router on loopback, real workers over the token-digest runner, a real Valkey.

Two tenants exist, each with a key. Calls are made by the generated stubs, so that every field can be seen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status as StatusMessage
from stemcache.admin.v1 import admin_pb2, admin_pb2_grpc
from stemcache.v1 import cache_pb2_grpc, inference_pb2_grpc
from stemcache.v1 import inference_pb2 as pb

from cache_store.clock import Clock, SystemClock
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.spans import TracingSettings
from cache_store.tokens import pack
from services.cluster.redis_roles import RoleUrls
from services.router.app import Router, running_router
from services.router.statuses import DETAILS_KEY
from services.settings import Address, RouterLimits, RouterSettings, Target
from services.tenants.master_key import MasterKey, cluster_key
from services.tenants.redis_connect import control_store
from services.tenants.redis_store import ControlStore
from tests.support.tokenizer_folder import write_tokenizer_folder
from tests.support.worker_host import digest_config
from worker.build import build_runner, connect_stores
from worker.host import WorkerHost, WorkerParts

MASTER = MasterKey(bytes(range(32)))
ADMIN_TOKEN = secrets.token_hex(32)
MODEL = "token-digest"


def router_settings(
    urls: RoleUrls,
    folder: Path,
    metrics: MetricsListen | None = None,
    tracing: TracingSettings | None = None,
    metrics_targets: tuple[Target, ...] = (),
    **limits: Any,
) -> RouterSettings:
    """Settings for free ports on loopback; `limits` are fields of RouterLimits."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "admin-token").write_text(ADMIN_TOKEN)
    return RouterSettings(
        redis_url=urls.router,
        control_redis_url=urls.operator,
        master_key=MASTER.raw.hex(),
        master_key_file=None,
        admin_token_file=folder / "admin-token",
        listen=Address("127.0.0.1:0"),
        admin_listen=Address("127.0.0.1:0"),
        models={MODEL: write_tokenizer_folder(folder / "model")},
        data_dir=folder,
        limits=dataclasses.replace(RouterLimits(drain_s=5.0), **limits),
        metrics=metrics,
        tracing=tracing,
        metrics_targets=metrics_targets,
    )


@asynccontextmanager
async def operator_store(urls: RoleUrls) -> AsyncIterator[ControlStore]:
    """The control store, to make tenants without a router."""
    async with control_store(urls.operator, MASTER, SystemClock()) as store:
        yield store


async def new_tenant(urls: RoleUrls, name: str) -> str:
    """Makes a tenant without a router; a key of it."""
    async with operator_store(urls) as store:
        await store.create_tenant(name)
        return (await store.create_key(name)).value.text


class Tenant:
    """Calls of one tenant."""

    def __init__(self, name: str, key: str, channel: grpc.aio.Channel) -> None:
        self.name = name
        self.key = key
        self.metadata = (("authorization", f"Bearer {key}"),)
        self.stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        self.cache: Any = cache_pb2_grpc.CacheServiceStub(channel)

    async def generate(self, request: pb.GenerateRequest, timeout_s: float = 30.0) -> pb.GenerateResponse:
        """Runs to the end."""
        response: pb.GenerateResponse = await self.stub.Generate(request, timeout=timeout_s, metadata=self.metadata)
        return response

    def stream(self, request: pb.GenerateRequest, timeout_s: float | None = 30.0) -> Any:
        """The raw call."""
        message = pb.GenerateStreamRequest(request=request)
        return self.stub.GenerateStream(message, timeout=timeout_s, metadata=self.metadata)

    async def cancel(self, request_id: str) -> bool:
        """Whether something was running."""
        message = pb.CancelGenerationRequest(request_id=request_id)
        response = await self.stub.CancelGeneration(message, timeout=10.0, metadata=self.metadata)
        return bool(response.was_running)


@dataclasses.dataclass
class Cluster:
    """Everything that runs."""

    router: Router
    workers: list[WorkerHost]
    acme: Tenant
    globex: Tenant
    cluster_admin: Any
    tenant_admin: Any
    channel: grpc.aio.Channel
    adapter_admin: Any = None

    async def record(self, tenant: Tenant, request_id: str) -> Any:
        """The operator's record of a request."""
        request = admin_pb2.GetRequestRecordRequest(tenant=tenant.name, request_id=request_id)
        return await self.cluster_admin.GetRequestRecord(request, timeout=10.0, metadata=ADMIN_METADATA)

    async def quotas_are_in_force(self) -> None:
        """Waits until all workers have the quotas that the router knows now."""
        status = await self.cluster_admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=10.0, metadata=ADMIN_METADATA)
        known = status.control_generation
        await eventually(lambda: all(host.record().quota_generation >= known for host in self.workers))

    async def nothing_left(self) -> None:
        """Waits until no request runs anywhere; then nothing may be held."""
        await eventually(lambda: self.router.table.num_running == 0)
        self.router.table.check_invariants()
        for worker in self.workers:
            await eventually(lambda worker=worker: worker.thread.num_open == 0)


ADMIN_METADATA = (("authorization", f"Bearer {ADMIN_TOKEN}"),)


@asynccontextmanager
async def running(settings: RouterSettings, clock: Clock) -> AsyncIterator[Router]:
    """A router whose tasks run until the block ends."""
    async with running_router(settings, clock) as router:
        task = asyncio.create_task(router.run())
        try:
            yield router
        finally:
            router.stop()
            await task


@asynccontextmanager
async def running_workers_of(urls: RoleUrls, changes: Sequence[dict[str, Any]]) -> AsyncIterator[list[WorkerHost]]:
    """One worker per entry; an entry holds changes of its configuration."""
    async with AsyncExitStack() as stack:
        hosts = []
        for at, change in enumerate(changes):
            hosts.append(await start_worker(urls, f"worker-{at}", **change))
            stack.push_async_callback(hosts[-1].stop)
        yield hosts


async def start_worker(urls: RoleUrls, worker_id: str, **changes: Any) -> WorkerHost:
    """A worker of the tests' cluster."""
    values = {"redis_url": urls.worker, "cluster_key": cluster_key(MASTER)} | changes
    config = digest_config(worker_id, **values)
    return await WorkerHost.start(config, WorkerParts(build_runner, connect_stores, SystemClock()))


@asynccontextmanager
async def running_cluster(
    urls: RoleUrls,
    folder: Path,
    workers: Sequence[dict[str, Any]] = ({},),
    clock: Clock | None = None,
    settings: Callable[..., RouterSettings] = router_settings,
    **limits: Any,
) -> AsyncIterator[Cluster]:
    """A router that is ready, workers, and tenants acme and globex."""
    async with AsyncExitStack() as stack:
        keys = {name: await new_tenant(urls, name) for name in ("acme", "globex")}
        hosts = await stack.enter_async_context(running_workers_of(urls, workers))
        router = await stack.enter_async_context(running(settings(urls, folder, **limits), clock or SystemClock()))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(router.address))
        admin = await stack.enter_async_context(grpc.aio.insecure_channel(router.admin_address))
        cluster = Cluster(
            router=router,
            workers=hosts,
            acme=Tenant("acme", keys["acme"], channel),
            globex=Tenant("globex", keys["globex"], channel),
            cluster_admin=admin_pb2_grpc.ClusterServiceStub(admin),
            tenant_admin=admin_pb2_grpc.TenantAdminServiceStub(admin),
            channel=channel,
            adapter_admin=admin_pb2_grpc.AdapterServiceStub(admin),
        )
        await until_served(cluster.acme, len(hosts))
        await eventually_async(lambda: _sees(cluster, len(hosts)))
        yield cluster
        await cluster.nothing_left()


async def _sees(cluster: Cluster, num_workers: int) -> bool:
    status = await cluster.cluster_admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=10.0, metadata=ADMIN_METADATA)
    return len(status.workers) >= num_workers


async def until_served(tenant: Tenant, num_workers: int) -> None:
    """Waits until the router knows its workers."""

    async def served() -> bool:
        try:
            response = await tenant.stub.ListModels(pb.ListModelsRequest(), timeout=5.0, metadata=tenant.metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return bool(response.models) or not num_workers

    await eventually_async(served)


def tokens_request(tokens: Sequence[int], **fields: Any) -> pb.GenerateRequest:
    """A greedy request by token ids; `fields` are those of SamplingParams and CachePolicy, and `request_id`."""
    names = [field.name for field in pb.CachePolicy.DESCRIPTOR.fields if field.name in fields]
    policy = pb.CachePolicy(**{name: fields.pop(name) for name in names})
    return pb.GenerateRequest(
        request_id=fields.pop("request_id", ""),
        model=fields.pop("model", ""),
        prompt=pb.Prompt(token_ids=pb.TokenIds(packed=pack(tokens))),
        sampling_params=pb.SamplingParams(**({"max_tokens": 8, "ignore_eos": True} | fields)),
        cache_policy=policy,
    )


async def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits for a condition that has to come true."""

    async def asked() -> bool:
        return condition()

    await eventually_async(asked, timeout_s)


async def eventually_async(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    """Waits for a condition that has to come true."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


def details_of(error: grpc.aio.AioRpcError) -> list[Any]:
    """The google.rpc details of a status."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            assert isinstance(value, bytes)
            return list(StatusMessage.FromString(value).details)
    return []


def detail_of(error: grpc.aio.AioRpcError, kind: type[Message]) -> Any:
    """The one detail of that kind."""
    found = [message for detail in details_of(error) if detail.Unpack(message := kind())]
    assert len(found) == 1, f"{len(found)} details of kind {kind.__name__}"
    return found[0]
