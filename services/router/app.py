"""Puts a router together and runs it: both ports, the tasks behind them, and an end in order.

The composition root of the process: the only module that knows all parts. SIGTERM means: not ready, take nothing new,
let what runs end within its time, then close.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import structlog

from cache_store.clock import Clock
from cache_store.departures import Departures
from cache_store.errors import PreconditionError
from cache_store.limit_store import RouterId
from cache_store.meter_store import MeterSpace, MeterWriterId
from cache_store.meter_writer import MeterPace, MeterWriter
from cache_store.redis_index import RedisIndexReader
from cache_store.redis_limits import RedisLimitStore
from cache_store.redis_meter import RedisMeterNames, RedisMeterStore
from cache_store.redis_quotas import RedisQuotas
from cache_store.redis_registry import RedisRegistryReader
from cache_store.redis_replica import ReplicaIndexReader, ReplicaStats
from cache_store.redis_session import RedisSession
from cache_store.tls_files import TlsFiles
from services.admin.adapter_servicer import AdapterServicer
from services.admin.cluster_servicer import ClusterServicer
from services.admin.tenant_servicer import TenantServicer
from services.admin.usage_servicer import AdminUsageServicer
from services.console.running import running_console
from services.router.adapter_control import AdapterControl
from services.router.auth import Gate
from services.router.bills import Bills
from services.router.block_maps import BlockMaps
from services.router.cache_servicer import CacheServicer
from services.router.cluster_limits import ClusterLimits
from services.router.condition import Condition
from services.router.dispatch import Dispatcher
from services.router.generations import Generations
from services.router.health import Health
from services.router.heat import PrefixHeat
from services.router.limits import Concurrency
from services.router.operator_view import OperatorView
from services.router.outlook import OutlookMaker
from services.router.planning import Planner
from services.router.prefixes import Prefixes
from services.router.purge_notices import PurgeNotices
from services.router.purge_rate import PurgeRate
from services.router.purges import Purges
from services.router.quota_advice import QuotaAdvisor
from services.router.readiness import Readiness
from services.router.records import RequestRecords
from services.router.registry_view import RegistryView
from services.router.request_table import RequestTable
from services.router.results import KeptResults, ResultBounds
from services.router.servers import admin_server, health_server, public_server
from services.router.servicer import InferenceServicer
from services.router.speculations import Speculations
from services.router.statuses import status_name
from services.router.tokenizers import load_tokenizers
from services.router.usage_reports import UsageReports
from services.router.usage_servicer import UsageServicer
from services.router.worker_client import WorkerPool
from services.router.worker_drains import WorkerDrains
from services.router.worker_questions import Questioner
from services.settings import Address, RouterSettings
from services.telemetry.router_metrics import RouterMetrics
from services.telemetry.router_sight import show_metrics, watch_requests
from services.tenants.directory import TenantDirectory
from services.tenants.master_key import MasterKey, cluster_key, from_file, from_value
from services.tenants.quota_publisher import QuotaPublisher
from services.tenants.redis_connect import control_store
from services.tenants.redis_store import ControlStore
from services.tenants.snapshot import SnapshotFile
from services.tenants.sync import DirectorySync
from services.tls import server_credentials

STOP_GRACE_S = 2.0
"""For the last messages of calls that have ended, and for streams of the health service."""

GOODBYE_AFTER_S = 1.0
"""From the start of a drain on, for probes and balancers to see it by the health service first."""

EXPIRE_S = 5.0

METER_PACE = MeterPace(gather_s=1.0, write_s=1.0)
"""What a router has counted in its last second nobody pays for where it is killed."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a running router consists of."""

    directory: TenantDirectory
    sync: DirectorySync
    quotas: QuotaPublisher
    view: RegistryView
    index: ReplicaIndexReader
    table: RequestTable
    results: KeptResults
    generations: Generations
    cluster_limits: ClusterLimits
    meter: MeterWriter
    readiness: Readiness
    condition: Condition
    public: grpc.aio.Server
    admin: grpc.aio.Server
    probe: grpc.aio.Server
    """Of who asks for health only and speaks no TLS."""
    metrics: RouterMetrics | None


class Router:
    """A running router. Made by `running_router`."""

    def __init__(
        self,
        parts: _Parts,
        address: Address,
        admin_address: Address,
        health_address: Address | None,
        drain_s: float,
    ) -> None:
        self._parts = parts
        self.metrics_address = "" if parts.metrics is None else parts.metrics.condition.metrics_address
        """Where its metrics are read; empty: nowhere."""
        self._drain_s = drain_s
        self._stop = asyncio.Event()
        self.address = address
        """Where tenants call."""
        self.admin_address = admin_address
        """Where the operator calls."""
        self.health_address = health_address
        """Where probes ask; None without such a port."""

    @property
    def console_url(self) -> str:
        """Where the operator looks with a browser; empty: nowhere."""
        return self._parts.condition.console_url

    @property
    def table(self) -> RequestTable:
        """Generations, for inspection."""
        return self._parts.table

    @property
    def index(self) -> ReplicaStats:
        """What it knows of the index by itself."""
        return self._parts.index.stats

    def stop(self) -> None:
        """Asks for an end in order; `run` returns after it."""
        self._stop.set()

    async def run(self) -> None:
        """Serves until `stop` is called. Raises what ended one of its tasks."""
        tasks = [asyncio.create_task(run(), name=name) for name, run in self._background().items()]
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait((stop, *tasks), return_when=asyncio.FIRST_COMPLETED)
            await self._end()
        finally:
            for task in (stop, *tasks):
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _background(self) -> dict[str, Callable[[], Coroutine[None, None, None]]]:
        parts = self._parts
        return {
            "control-sync": parts.sync.run,
            "quota-publication": parts.quotas.run,
            "registry-view": parts.view.run,
            "index-replica": parts.index.run,
            "cluster-limits": parts.cluster_limits.run,
            "usage": parts.meter.run,
            "readiness": parts.readiness.run,
            "expire-results": self._expire,
        }

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_S)
            self._parts.results.expire()

    async def _say_goodbye(self) -> None:
        """Has callers connect elsewhere, whose next calls would else be refused for as long as others' streams run."""
        await asyncio.sleep(GOODBYE_AFTER_S)
        await self._parts.public.stop(self._drain_s + STOP_GRACE_S)

    async def _end(self) -> None:
        parts = self._parts
        _log.info("router.draining", running_requests=parts.table.num_running)
        parts.readiness.drain()
        farewell = asyncio.create_task(self._say_goodbye(), name="goodbye")
        await parts.generations.drain(self._drain_s)
        if parts.table.num_running:
            _log.warning("router.drain_deadline", running_requests=parts.table.num_running)
        await parts.table.close()
        await parts.meter.finish()
        farewell.cancel()
        await asyncio.gather(parts.public.stop(STOP_GRACE_S), parts.admin.stop(STOP_GRACE_S))
        _log.info("router.stopped")


@asynccontextmanager
async def running_router(settings: RouterSettings, clock: Clock) -> AsyncIterator[Router]:
    """A router that listens; its `run` has to be awaited for it to work.

    Raises PreconditionError for a port that is taken or a model folder that does not fit, InvalidRequestError for a
    bad key or token, and what a snapshot that cannot be used raises.
    """
    async with AsyncExitStack() as stack:
        parts = await _build(settings, clock, stack)
        stack.push_async_callback(parts.public.stop, 0)
        stack.push_async_callback(parts.admin.stop, 0)
        address = _bind(parts.public, settings.listen, settings.public_tls)
        admin_address = _bind(parts.admin, settings.admin_listen, settings.tls)
        health_address: Address | None = None
        if settings.health_listen is not None:
            stack.push_async_callback(parts.probe.stop, 0)
            health_address = _bind(parts.probe, settings.health_listen, None)
            await parts.probe.start()
        await parts.public.start()
        await parts.admin.start()
        console = running_console(settings.console_listen, admin_address, settings.tls, clock)
        parts.condition.console_url = await stack.enter_async_context(console)
        await show_metrics(parts.metrics, settings, stack)
        router = Router(parts, address, admin_address, health_address, settings.limits.drain_s)
        shown = router.metrics_address
        _log.info("router.listening", address=address, admin_address=admin_address, metrics_address=shown)
        yield router


async def _build(settings: RouterSettings, clock: Clock, stack: AsyncExitStack) -> _Parts:
    master = _master_key(settings)
    tokenizers = await asyncio.to_thread(load_tokenizers, settings.models)
    stack.callback(tokenizers.close)
    store = await stack.enter_async_context(control_store(settings.control_redis_url, master, clock))
    directory = TenantDirectory(clock)
    sync = await _synced(store, directory, SnapshotFile(settings.data_dir / "router-control.json", master), clock)
    control_session, session = (_session(url, stack) for url in (settings.control_redis_url, settings.redis_url))
    pool = WorkerPool(settings.tls)
    stack.push_async_callback(pool.close)
    view = RegistryView(RedisRegistryReader(session), clock, tokenizers.digests(), pool.lose, pool.is_there)
    departures, speculations = Departures(clock), Speculations(clock)
    index = ReplicaIndexReader(session, RedisIndexReader(session), view.incarnations, clock, departures)
    outlooks, heat = OutlookMaker(departures, clock), PrefixHeat(clock)
    planner = Planner(directory, tokenizers, view, index, speculations, outlooks, heat)
    limits = settings.limits
    places = Concurrency("concurrent requests", limits.max_requests, limits.max_requests_per_tenant)
    calls = Concurrency("concurrent calls", limits.max_calls, limits.max_calls_per_tenant)
    results, records, router_id = KeptResults(clock, ResultBounds()), RequestRecords(), uuid.uuid4().hex
    table = RequestTable(clock, places, results)
    dispatcher = Dispatcher(pool, view, tokenizers, cluster_key(master), clock, speculations)
    shared = ClusterLimits(RedisLimitStore(session), RouterId(router_id), clock)
    generations = Generations(planner, dispatcher, table, records, shared, status_name, limits.max_request_s, clock)
    counted = watch_requests(generations, directory, settings, stack)
    admin_token = _admin_token(settings)
    operator = OperatorView(admin_token, records)
    servicer = InferenceServicer(directory, generations, planner, tokenizers, operator, limits.write_s)
    questioner = Questioner(pool, cluster_key(master), view.token_expiry_s)
    publisher = QuotaPublisher(RedisQuotas(control_session), directory, cluster_key(master), clock)
    notices = PurgeNotices(view, pool, cluster_key(master))
    purges = Purges(store, sync, directory, publisher, notices, planner.models.named, clock)
    adapters = AdapterControl(store, sync, publisher, view, planner.models, clock)
    cache = CacheServicer(directory, generations, Prefixes(planner, view, questioner, clock), purges, PurgeRate(clock))
    meter, usage, names = _metering(control_session, session, router_id, generations.bills, clock)
    condition = Condition(directory, view, index, shared, table, generations.counts, generations.traffic)
    readiness = Readiness(health := Health(limits.write_s), lambda: directory.is_ready and view.is_serving)
    return _Parts(
        directory=directory,
        sync=sync,
        quotas=publisher,
        view=view,
        index=index,
        table=table,
        results=results,
        generations=generations,
        cluster_limits=shared,
        meter=meter,
        readiness=readiness,
        condition=condition,
        public=public_server(servicer, cache, UsageServicer(directory, usage), Gate(directory, calls), health, limits),
        probe=health_server(health),
        admin=admin_server(
            TenantServicer(store, sync, purges, names),
            _cluster_servicer(directory, view, records, condition, pool, cluster_key(master)),
            AdapterServicer(directory, adapters),
            AdminUsageServicer(directory, usage, QuotaAdvisor(directory, view, questioner), names),
            admin_token,
        ),
        metrics=None if counted is None else RouterMetrics(counted, directory, view, condition),
    )


def _cluster_servicer(
    directory: TenantDirectory,
    view: RegistryView,
    records: RequestRecords,
    condition: Condition,
    pool: WorkerPool,
    key: bytes,
) -> ClusterServicer:
    drains, block_maps = WorkerDrains(view, pool, key), BlockMaps(view, pool, key)
    return ClusterServicer(directory, view, records, condition, drains, block_maps)


def _session(url: str, stack: AsyncExitStack) -> RedisSession:
    session = RedisSession(url)
    stack.push_async_callback(session.close)
    return session


async def _synced(
    store: ControlStore, directory: TenantDirectory, snapshot: SnapshotFile, clock: Clock
) -> DirectorySync:
    return DirectorySync(store, directory, snapshot, await asyncio.to_thread(snapshot.load), clock)


def _metering(
    control: RedisSession, session: RedisSession, router_id: str, bills: Bills, clock: Clock
) -> tuple[MeterWriter, UsageReports, RedisMeterNames]:
    """What writes and what reads the use of tenants: requests are written by the operator's rights, as control data."""
    store = RedisMeterStore(control, MeterSpace.REQUESTS)
    writer = MeterWriter(store, MeterWriterId(router_id), bills.take, clock, METER_PACE)
    requests, blocks = (RedisMeterStore(session, space) for space in (MeterSpace.REQUESTS, MeterSpace.BLOCKS))
    return writer, UsageReports(requests, blocks, writer, clock), RedisMeterNames(control)


def _master_key(settings: RouterSettings) -> MasterKey:
    return from_file(settings.master_key_file) if settings.master_key_file else from_value(settings.master_key)


def _admin_token(settings: RouterSettings) -> str:
    try:
        return settings.admin_token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PreconditionError(f"the admin token file {settings.admin_token_file} cannot be read: {error}") from error


def _bind(server: grpc.aio.Server, address: Address, tls: TlsFiles | None) -> Address:
    try:
        port = (
            server.add_insecure_port(address)
            if tls is None
            else server.add_secure_port(address, server_credentials(tls))
        )
    except RuntimeError as error:
        raise PreconditionError(f"the router cannot listen on {address}; free the port or name another") from error
    return Address(f"{address.rpartition(':')[0]}:{port}")
