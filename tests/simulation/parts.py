"""Workers and routers of the simulated cluster: the product's own parts, put together on simulated surroundings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from stemcache.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server

from cache_store.departures import Departures
from cache_store.index import IndexUnavailableError
from cache_store.index_replica import IndexReplica
from cache_store.limit_store import RouterId
from cache_store.memory_limits import MemoryLimitStore
from cache_store.memory_meter import MemoryMeterStore
from cache_store.redis_index import RedisIndexReader, RedisIndexWriter
from cache_store.redis_quotas import RedisQuotas
from cache_store.redis_registry import RedisRegistryReader, RedisRegistryWriter
from cache_store.redis_replica import ReplicaIndexReader
from cache_store.redis_session import REDIS_ERRORS
from cache_store.redis_sweep import sweep_dead
from cache_store.registry import SupersededError, WorkerId
from services.cluster.redis_roles import RedisRole
from services.router.cluster_limits import ClusterLimits
from services.router.dispatch import Dispatcher
from services.router.generations import Generations
from services.router.heat import PrefixHeat
from services.router.limits import Concurrency
from services.router.operator_view import OperatorView
from services.router.outlook import OutlookMaker
from services.router.planning import Planner
from services.router.purge_notices import PurgeNotices
from services.router.purges import Purges
from services.router.records import RequestRecords
from services.router.registry_view import RegistryView
from services.router.request_table import RequestTable
from services.router.results import KeptResults, ResultBounds
from services.router.servicer import InferenceServicer
from services.router.speculations import Speculations
from services.router.statuses import status_name
from services.router.tokenizers import Tokenizers
from services.router.worker_client import WorkerPool
from services.tenants.directory import TenantDirectory
from services.tenants.master_key import MasterKey, cluster_key
from services.tenants.quota_publisher import QuotaPublisher
from services.tenants.redis_store import ControlStore
from services.tenants.state import EMPTY_STATE, ControlState
from services.tenants.sync import DirectorySync
from tests.simulation.engine_thread import ProcessClock
from tests.simulation.loop import Phase, Process
from tests.simulation.oracle import MODEL, EngineOracle, Oracle
from tests.simulation.store_server import SimulatedRedis, SimulatedSession, StoreServer
from worker.config import NumBlocks, RunnerKind, WorkerConfig
from worker.digest_runner import DigestRunner, Durations
from worker.host import WorkerHost, WorkerParts
from worker.publisher import Stores

MASTER = MasterKey(bytes(range(32)))
MAX_REQUEST_S = 60.0
WRITE_S = 30.0
COPY_BOUNDS = ((1_000_000, 20_000), (64, 4))
"""Digests and domains of routers' copies of the index: some have room for everything, some for little."""


class WorkerInstance:
    """One life of a worker."""

    def __init__(self, process: Process, config: WorkerConfig, durations: Durations, oracle: Oracle) -> None:
        self.process = process
        self.watch = EngineOracle(oracle, process.name, process.loop)
        self.clock = ProcessClock(process.loop, watch=self.watch)
        self.host: WorkerHost | None = None
        self.has_ended = False
        self.watch_task: Callable[[asyncio.Task[Any]], object] = lambda task: task
        self._config = config
        self._durations = durations
        self._oracle = oracle

    def start(self, server: StoreServer) -> None:
        """Begins to run."""
        self.watch_task(self.process.spawn(self._run(server), "worker"))

    @property
    def is_alive(self) -> bool:
        """Whether it runs and has not ended by itself."""
        return self.process.phase is not Phase.DEAD and not self.has_ended

    async def leave(self, drain_s: float) -> None:
        """Ends in order."""
        if self.host is not None:
            await self.host.drain(drain_s)
            await self.host.stop()

    async def _run(self, server: StoreServer) -> None:
        def build(config: WorkerConfig) -> DigestRunner:
            assert isinstance(config.pool, NumBlocks)
            return DigestRunner(MODEL, config.pool.count, self._durations, self.clock.spend)

        def connect(_: WorkerConfig) -> Stores:
            session = SimulatedSession(server, RedisRole.WORKER)

            async def sweep() -> None:
                try:
                    await sweep_dead(session)
                except REDIS_ERRORS as error:
                    raise IndexUnavailableError(str(error)) from error

            writer = RedisIndexWriter(session)
            quotas, registry = RedisQuotas(session), RedisRegistryWriter(session)
            return Stores(writer, registry, quotas, sweep, session.close, MemoryMeterStore())

        host = await WorkerHost.start(self._config, WorkerParts(build, connect, self.clock))
        self.watch.incarnation = host.incarnation
        self.host = host
        await host.wait_ended()
        self.has_ended = True
        if host.failure is not None and not isinstance(host.failure, SupersededError):
            self._oracle.wrong(f"{self.process.name} failed: {host.failure!r}")


def worker_config(name: str, num_blocks: int, port: int) -> WorkerConfig:
    """Of a simulated worker."""
    return WorkerConfig(
        worker_id=WorkerId(name),
        model_name=MODEL.name,
        redis_url="redis://simulated",
        cluster_key=cluster_key(MASTER),
        pool=NumBlocks(num_blocks),
        runner=RunnerKind.DIGEST,
        listen_port=port,
        token_budget=64,
        max_num_sequences=8,
    )


class MemorySnapshot:
    """In place of SnapshotFile: what outlives a router's process."""

    def __init__(self) -> None:
        self._state = EMPTY_STATE
        self.is_current = True
        """Under the master key that is in use; there is but one."""

    def load(self) -> ControlState:
        return self._state

    def save(self, state: ControlState) -> None:
        if state.generation >= self._state.generation:
            self._state = state


class RouterInstance:
    """One life of a router."""

    def __init__(
        self, process: Process, port: int, seed: str, snapshot: MemorySnapshot, server: StoreServer, oracle: Oracle
    ) -> None:
        self.process = process
        self.clock = ProcessClock(process.loop)
        self.address = f"{process.place}:{port}"
        self.is_up = False
        self.watch_task: Callable[[asyncio.Task[Any]], object] = lambda task: task
        self._seed = seed
        self._snapshot = snapshot
        self._server = server
        self._oracle = oracle
        self.view: RegistryView
        self.directory: TenantDirectory
        self.index: ReplicaIndexReader
        self.speculations: Speculations
        self.table: RequestTable
        self.purges: Purges
        self.records: RequestRecords
        self.sync: DirectorySync
        self.store: ControlStore

    def start(self) -> None:
        """Begins to run."""
        self.watch_task(self.process.spawn(self._run(), "router"))

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.phase is not Phase.DEAD

    async def _run(self) -> None:
        clock, key = self.clock, cluster_key(MASTER)
        redis: Any = SimulatedRedis(self._server)
        store = self.store = ControlStore(redis, MASTER, clock)
        directory = self.directory = TenantDirectory(clock)
        snapshot: Any = self._snapshot
        sync = self.sync = DirectorySync(store, directory, snapshot, snapshot.load(), clock)
        session = SimulatedSession(self._server, RedisRole.ROUTER)
        tokenizers = Tokenizers({})
        pool = WorkerPool()
        reader = RedisRegistryReader(session)
        view = self.view = RegistryView(reader, clock, tokenizers.digests(), pool.lose, pool.is_there)
        departures = Departures(clock)
        replica = IndexReplica(*random.Random(self._seed).choice(COPY_BOUNDS))
        index = self.index = ReplicaIndexReader(
            session, RedisIndexReader(session), view.incarnations, clock, departures, replica
        )
        speculations = self.speculations = Speculations(clock)
        outlooks, heat = OutlookMaker(departures, clock), PrefixHeat(clock)
        planner = Planner(directory, tokenizers, view, index, speculations, outlooks, heat)
        places = Concurrency("concurrent requests", 1_000, 1_000)
        table = self.table = RequestTable(clock, places, KeptResults(clock, ResultBounds()))
        records = self.records = RequestRecords()
        dispatcher = Dispatcher(pool, view, tokenizers, key, clock, speculations)
        limits = ClusterLimits(MemoryLimitStore(clock), RouterId(self.process.name), clock)
        generations = Generations(planner, dispatcher, table, records, limits, status_name, MAX_REQUEST_S, clock)
        operator = OperatorView("not used in simulations", records)
        servicer = InferenceServicer(directory, generations, planner, tokenizers, operator, WRITE_S)
        publisher = QuotaPublisher(
            RedisQuotas(SimulatedSession(self._server, RedisRole.OPERATOR)), directory, key, clock
        )
        notices = PurgeNotices(view, pool, key)
        self.purges = Purges(store, sync, directory, publisher, notices, planner.models.named, clock)
        server = grpc.aio.server()
        add_InferenceServiceServicer_to_server(servicer, server)
        server.add_insecure_port(self.address)
        await server.start()
        self.is_up = True
        await self._keep_running(sync.run, publisher.run, view.run, index.run)

    async def _keep_running(self, *works: Callable[[], Awaitable[None]]) -> None:
        tasks = [asyncio.ensure_future(work()) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                self._oracle.wrong(f"a task of {self.process.name} ended: {task!r}")
