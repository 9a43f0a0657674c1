"""A cluster of real processes on this machine: Valkey, workers, routers, and two tenants who call them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from stemcache.admin.v1 import admin_pb2, admin_pb2_grpc

from cache_store.clock import SystemClock
from services.client.admin_client import AdminClient
from services.tenants.master_key import cluster_key
from services.tenants.redis_connect import control_store
from tests.chaos.load import Caller, Load, Oracle, Prompt, Shape, digest_oracle
from tests.chaos.processes import IN_NO_NAMESPACE, Child
from tests.chaos.store import LOCAL, Place, Store
from tests.support.router_host import ADMIN_METADATA, ADMIN_TOKEN, MASTER

TENANTS = ("acme", "globex")
READY_TIMEOUT_S = 90.0
STEP_S = 0.05
TOKEN_S = 0.0003
"""Of the digest model: a step, and a token of a prompt."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a process runs."""

    host: str = "127.0.0.1"
    prefix: Sequence[str] = IN_NO_NAMESPACE


@dataclass(frozen=True)
class Layout:
    """What a cluster is made of."""

    workers: tuple[str, ...] = ("w0", "w1", "w2")
    routers: tuple[str, ...] = ("r0", "r1")
    worker_told: Mapping[str, Any] = field(default_factory=dict)
    """Changes of each worker's configuration."""
    router_environment: Mapping[str, str] = field(default_factory=dict)
    seats: Mapping[str, Seat] = field(default_factory=dict)
    """Of processes by name, where it is not this machine's own network."""
    store: Place = LOCAL
    has_clocks: bool = False
    """Whether the clock of each process can be set."""


@dataclass
class RouterHandle:
    """A router process and where it listens."""

    child: Child
    address: str = ""
    admin_address: str = ""

    async def status(self) -> admin_pb2.GetStatusResponse:
        """What it sees. Raises grpc.aio.AioRpcError."""
        async with grpc.aio.insecure_channel(self.admin_address) as channel:
            stub: Any = admin_pb2_grpc.ClusterServiceStub(channel)
            response: admin_pb2.GetStatusResponse = await stub.GetStatus(
                admin_pb2.GetStatusRequest(), timeout=5.0, metadata=ADMIN_METADATA
            )
            return response

    def admin(self) -> AdminClient:
        """The operator's client; it blocks, so it is for another thread."""
        return AdminClient(self.admin_address, ADMIN_TOKEN)


class Cluster:
    """Made by `running_cluster`."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self.layout = layout
        self.store = Store(folder / "store", layout.store)
        self.keys: dict[str, str] = {}
        self.workers = {name: self._worker(name) for name in layout.workers}
        self.routers = {name: RouterHandle(self._router(name)) for name in layout.routers}
        self.extra: list[Child] = []
        """Workers that stand in for others under the same id."""

    async def start(self) -> None:
        """Everything, until every router sees every worker."""
        await self.store.start()
        async with control_store(self.store.urls.operator, MASTER, SystemClock()) as store:
            for name in TENANTS:
                await store.create_tenant(name)
                self.keys[name] = (await store.create_key(name)).value.text
        for child in self.children():
            await child.start()
        for router in self.routers.values():
            await self.until_listening(router)
        await self.until_seen(len(self.workers))

    def children(self) -> list[Child]:
        """All processes but the store."""
        return [*self.workers.values(), *(router.child for router in self.routers.values()), *self.extra]

    async def until_listening(self, router: RouterHandle, since_unix_s: float = 0.0) -> None:
        """Takes the addresses out of its log."""
        event = await router.child.event("router.listening", since_unix_s, READY_TIMEOUT_S)
        router.address, router.admin_address = event["address"], event["admin_address"]

    async def until_seen(self, num_workers: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every router has that many workers and serves."""
        for router in self.routers.values():
            await until(lambda router=router: self._sees(router, num_workers), timeout_s, "a router sees all workers")

    async def restart(self, worker: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Starts a worker again; returns when every router has seen the new incarnation."""
        since_s = time.time()
        await self.workers[worker].start()
        event = await self.workers[worker].event("chaos.incarnation", since_s, timeout_s)

        async def is_seen() -> bool:
            return all([event["incarnation"] in await _incarnations(router) for router in self.routers.values()])

        await until(is_seen, timeout_s, f"routers see the new {worker}")

    def caller(self, tenant: str, routers: Sequence[str]) -> Caller:
        """A client of these routers, in this order."""
        addresses = ",".join(self.routers[name].address for name in routers)
        return Caller(tenant, self.keys[tenant], addresses)

    def load(self, shape: Shape, oracle: Oracle = digest_oracle, seed: int = 1, prompts: Sequence[Prompt] = ()) -> Load:
        """A load of both tenants, each beginning at another router."""
        names = list(self.routers)
        callers = [
            self.caller(tenant, [*names[at % len(names) :], *names[: at % len(names)]])
            for at, tenant in enumerate(TENANTS)
        ]
        return Load(callers, shape, oracle, seed, prompts)

    async def states(self) -> list[dict[str, Any]]:
        """What each worker holds now, by its own word."""
        asked_s = time.time()
        for worker in self.workers.values():
            worker.send(signal.SIGUSR1)
        return [await worker.event("chaos.state", asked_s, 30.0) for worker in self.workers.values()]

    async def until_idle(self, timeout_s: float = 30.0) -> None:
        """Waits until no worker has a request or holds a block. Raises AssertionError: something was leaked."""

        async def is_idle() -> bool:
            states = await self.states()
            self.last_states = states
            return not any(state["num_open"] or state["num_held_blocks"] or state["num_requests"] for state in states)

        await until(is_idle, timeout_s, "nothing is held by nobody")

    def log_events(self, name: str, since_unix_s: float = 0.0) -> list[dict[str, Any]]:
        """Events of all routers' logs, by time."""
        found = [event for router in self.routers.values() for event in router.child.events(name, since_unix_s)]
        return sorted(found, key=lambda event: float(event["unix_s"]))

    def clock_file(self, name: str) -> Path:
        """What is added to that process's clock."""
        return self.folder / f"{name}.clock"

    def worker_child(self, name: str, log_name: str = "") -> Child:
        """Another process for a worker of that name."""
        return self._worker(name, log_name)

    async def _sees(self, router: RouterHandle, num_workers: int) -> bool:
        try:
            return len((await router.status()).workers) == num_workers
        except grpc.aio.AioRpcError:
            return False

    def _worker(self, name: str, log_name: str = "") -> Child:
        seat = self.layout.seats.get(name, Seat())
        told = {
            "worker_id": name, "redis_url": self.store.urls.worker, "cluster_key": cluster_key(MASTER).hex(),
            "pool": 4_096, "max_num_sequences": 128, "digest_step_s": STEP_S, "digest_token_s": TOKEN_S,
            "listen_host": seat.host, **self.layout.worker_told,
        }  # fmt: skip
        if self.layout.has_clocks:
            told["clock_file"] = str(self.clock_file(name))
        if "disk_folder" in told:
            told["disk_folder"] = f"{told['disk_folder']}/{name}"
        return Child(name, "tests.chaos.worker_main", self.folder / f"{log_name or name}.log", {}, told, seat.prefix)

    def _router(self, name: str) -> Child:
        seat = self.layout.seats.get(name, Seat())
        folder = self.folder / name
        folder.mkdir()
        (folder / "admin-token").write_text(ADMIN_TOKEN)
        environment = {
            "STEMCACHE_REDIS_URL": self.store.urls.router,
            "STEMCACHE_CONTROL_REDIS_URL": self.store.urls.operator,
            "STEMCACHE_MASTER_KEY": MASTER.raw.hex(),
            "STEMCACHE_ADMIN_TOKEN_FILE": str(folder / "admin-token"),
            "STEMCACHE_LISTEN": f"{seat.host}:0",
            "STEMCACHE_ADMIN_LISTEN": f"{seat.host}:0",
            "STEMCACHE_DATA_DIR": str(folder),
            "STEMCACHE_MAX_REQUESTS": "1024",
            "STEMCACHE_MAX_REQUESTS_PER_TENANT": "512",
            **self.layout.router_environment,
        }
        module = "services.router"
        if self.layout.has_clocks:
            environment["CHAOS_CLOCK_FILE"] = str(self.clock_file(name))
            module = "tests.chaos.router_main"
        return Child(name, module, self.folder / f"{name}.log", environment, None, seat.prefix)


async def _incarnations(router: RouterHandle) -> set[str]:
    try:
        return {worker.incarnation for worker in (await router.status()).workers}
    except grpc.aio.AioRpcError:
        return set()


@asynccontextmanager
async def running_cluster(folder: Path, layout: Layout) -> AsyncIterator[Cluster]:
    """A cluster that serves; nothing of it is left afterwards."""
    folder.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        cluster = Cluster(folder, layout)
        stack.push_async_callback(cluster.store.kill)
        stack.push_async_callback(_end_all, cluster)
        await cluster.start()
        yield cluster


async def _end_all(cluster: Cluster) -> None:
    for child in cluster.children():
        await child.end()


async def until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Waits for something that has to come true. Raises AssertionError."""
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.05)
