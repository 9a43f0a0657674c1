"""One worker in one process: runner, engine and its thread, the gRPC edge, the publisher, and who watches over them.

Each start is a fresh incarnation. Where the engine, its thread or the publisher fails, the host says so to everybody
(health, open calls, registry), closes itself and sets `ended`: it is not revived, its process starts again. Usable in
any process and event loop; knows no Ray.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.adapters import MAX_ADAPTERS
from cache_store.clock import Clock, SteadyClock
from cache_store.errors import PreconditionError, WorkerLostError
from cache_store.events import BlockEvent
from cache_store.fence import FenceTable
from cache_store.index import Incarnation
from cache_store.meter_store import MeterWriterId
from cache_store.meter_writer import MeterWriter
from cache_store.pool_sizes import PoolSizes
from cache_store.quota import QuotaTable
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from cache_store.telemetry.http_server import MetricsServer
from cache_store.telemetry.tracing import open_spans
from cache_store.tokens import TOKEN_BYTES
from worker.adapter_loads import AdapterLoads
from worker.block_meter import METER_PACE, BlockMeter
from worker.config import WorkerConfig
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.engine_thread import EngineThread
from worker.meter import Meter
from worker.metered_runner import MeteredRunner
from worker.metrics_page import MetricsPage
from worker.peers import Fetched
from worker.publisher import Publisher, Stores
from worker.quota_watch import APPLY_TIMEOUT_S, QuotaWatch
from worker.rpc import WorkerServicer
from worker.rpc_departure import Departure, StayingHealth
from worker.rpc_fetch import PeerClient
from worker.rpc_retire import Identity, Retirement
from worker.rpc_tls import add_port
from worker.runner import ModelInfo, Runner

SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name

STOP_GRACE_S = 2.0
"""What running calls get to end after a stop was asked for; `drain` before gives more."""

STALL_AFTER_S = 120.0
"""A step that runs for longer is taken for hung."""

_WATCH_S = 1.0
_MESSAGE_OVERHEAD_BYTES = 64 * 1024
"""Token, stop ids and the rest of a request beside its prompt."""

_log = structlog.get_logger(__name__)


class StalledError(Exception):
    """A step of the engine does not come back."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a host is built from; `worker/build.py` has the real ones."""

    build_runner: Callable[[WorkerConfig], Runner]
    connect_stores: Callable[[WorkerConfig], Stores]
    clock: Clock


class WorkerHost:
    """Runs one worker on the event loop that calls `start`. Made by `start`, ended by `stop` or by a failure inside."""

    def __init__(self, config: WorkerConfig, parts: WorkerParts, runner: Runner, stores: Stores) -> None:
        self._config = config
        self._model = runner.info
        self._sizes = PoolSizes(runner.num_blocks, runner.num_slots)
        self._incarnation = Incarnation(secrets.token_hex(16))
        self._address = ""
        self._clock = SteadyClock(parts.clock)
        draw = random.Random(secrets.randbits(64)).random  # noqa: S311 - chooses hits to check; nothing secret
        block_size = runner.info.geometry.block_size
        self._peers = PeerClient(self._incarnation, config.cluster_key, block_size, self._clock, config.tls)
        meter = Meter()
        counted = runner if config.metrics is None else MeteredRunner(runner, meter, parts.clock)
        engine = Engine(counted, parts.clock, engine_config(config), draw=draw, peers=self._peers)
        self._thread = EngineThread(engine, self._offer, parts.clock)
        if config.metrics is not None:
            self._thread.step_watch = meter
        self._metrics: MetricsServer | None = None
        self._adapters = AdapterLoads(
            self._thread, runner.prepare_adapter, self._model, config.model_name, self._renew_soon
        )
        self._spans = open_spans(config.tracing, "stemcache-worker", config.worker_id)
        me = (self._thread, self._model, self._incarnation, config.cluster_key, self._clock)
        self._servicer = WorkerServicer(*me, self._adapters, self._obey, spans=self._spans)
        identity = Identity(
            incarnation=self._incarnation,
            cluster_key=config.cluster_key,
            block_size=block_size,
            address=lambda: self._address,
            generation=lambda: self._servicer.purges.generation,
            tls=config.tls,
        )
        self._health = health.aio.HealthServicer()
        self._stop = asyncio.Event()
        self._retirement = Retirement(self._thread, identity, self._clock)
        self._departure = Departure(
            self._retirement, identity, self._serves, self._begin_drain, self._stop.set, self._clock
        )
        self._server = grpc.aio.server(options=_server_options(self._model))
        self._quotas = QuotaWatch(
            stores.quotas,
            config.cluster_key,
            self._set_quotas,
            self._set_fences,
            self._adapters.want,
            self._servicer.purges.note_read,
        )
        self._transfers = runner.transfers
        self._transfers.notify(self._thread.wake)
        self._publisher = Publisher(stores, self.record)
        self._page = MetricsPage(self._thread, meter, self._publisher, self.record, config.device)
        blocks = BlockMeter(parts.clock, lambda: self._thread.load.tenants)
        self._meter = MeterWriter(stores.meter, MeterWriterId(self._incarnation), blocks.take, parts.clock, METER_PACE)
        self._stores = stores
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._supervision: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: WorkerConfig, parts: WorkerParts) -> WorkerHost:
        """Loads the model and serves. Works without stores: it publishes as soon as they answer.

        Raises InvalidRequestError for a bad model folder or pool, PreconditionError for a port that is taken.
        """
        runner = await asyncio.to_thread(parts.build_runner, config)
        host = cls(config, parts, runner, parts.connect_stores(config))
        await host._open()
        return host

    @property
    def incarnation(self) -> Incarnation:
        """This life of the worker."""
        return self._incarnation

    @property
    def address(self) -> str:
        """host:port for routers."""
        return self._address

    @property
    def metrics_address(self) -> str:
        """host:port for Prometheus; empty: nowhere."""
        return "" if self._metrics is None else self._metrics.address

    @property
    def model(self) -> ModelInfo:
        """What it serves."""
        return self._model

    @property
    def healthy(self) -> bool:
        """Whether it serves, or would if it did not drain."""
        return self._thread.healthy and not self._ended.is_set()

    @property
    def failure(self) -> BaseException | None:
        """What ended it; None while it runs and after `stop`."""
        return self._failure

    @property
    def thread(self) -> EngineThread[Engine]:
        """Access to the engine between two steps, for inspection."""
        return self._thread

    def record(self) -> WorkerRecord:
        """What it tells the registry now."""
        geometry = self._model.geometry
        return WorkerRecord(
            protocol_version=PROTOCOL_VERSION,
            worker_id=self._config.worker_id,
            incarnation=self._incarnation,
            address=self._address,
            model=self._config.model_name,
            kv_format=self._model.kv_format.digest(),
            tokenizer_digest=self._model.tokenizer_digest,
            block_size=geometry.block_size,
            num_blocks=self._sizes.num_blocks,
            kv_bytes_per_token=self._sizes.bytes_per_token(geometry),
            kv_bytes_per_sequence=self._sizes.bytes_per_sequence(geometry),
            kv_pool_bytes=self._sizes.size_bytes(geometry),
            max_model_len=self._model.max_model_len,
            max_num_sequences=self._config.max_num_sequences,
            vocab_size=self._model.vocab_size,
            eos_token_ids=self._model.eos_token_ids,
            draining=self._servicer.draining,
            load=self._thread.load,
            quota_generation=self._quotas.generation,
            adapters=self._adapters.reports()[:MAX_ADAPTERS],
            clock_unix_s=self._clock.unix_s(),
            metrics_address=self.metrics_address,
        )

    async def drain(self, deadline_s: float) -> None:
        """Takes no new requests and waits for the running ones, at most `deadline_s`. Call `stop` after it."""
        await self._begin_drain()
        try:
            async with asyncio.timeout(deadline_s):
                await self._servicer.wait_idle()
        except TimeoutError:
            _log.warning("drain_deadline", open_requests=self._thread.num_open)

    @property
    def has_retired(self) -> bool:
        """Whether it has left because it was told to: nothing is to take its place."""
        return self._departure.has_left

    async def _obey(self, order: worker_pb2.DrainRequest) -> worker_pb2.DrainResponse:
        if self._servicer.draining:
            raise PreconditionError("this worker is leaving already")
        return await self._departure.obey(order)

    def _serves(self) -> bool:
        return self.healthy and not self._servicer.draining and not self._stop.is_set()

    async def _begin_drain(self) -> None:
        self._servicer.drain()
        self._publisher.renew_soon()
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
        _log.info("draining", open_requests=self._thread.num_open)

    async def stop(self) -> None:
        """Ends everything; calls that still run are lost, and go on at another worker."""
        self._stop.set()
        await self._ended.wait()

    async def wait_ended(self) -> None:
        """Returns when it has ended; `failure` says why."""
        await self._ended.wait()

    async def _set_quotas(self, quotas: QuotaTable) -> None:
        await self._thread.call(lambda engine: engine.set_quotas(quotas), APPLY_TIMEOUT_S)

    async def _set_fences(self, fences: FenceTable) -> None:
        await self._servicer.purges.take(fences)

    async def _take_fetched(self, fetched: Fetched) -> None:
        try:
            await self._thread.call(lambda engine: engine.exchange.arrived(fetched), APPLY_TIMEOUT_S)
        except (TimeoutError, WorkerLostError):
            return  # it is taken when the step ends; or there is nobody to take it any more

    def _renew_soon(self) -> None:
        self._publisher.renew_soon()

    def _offer(self, events: Sequence[BlockEvent]) -> None:
        self._publisher.offer(events)

    async def _open(self) -> None:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self._servicer, self._server)
        answers = StayingHealth(self._health, self._incarnation, lambda: self._departure.stays)
        health_pb2_grpc.add_HealthServicer_to_server(answers, self._server)
        try:
            port = self._bind()
            await self._server.start()
            self._metrics = await self._page.show(self._config.metrics)
        except BaseException:
            await asyncio.to_thread(self._transfers.close)
            await self._stores.close()
            raise
        self._address = _join(self._config.advertised_host or self._config.listen_host, port)
        self._peers.start(self._take_fetched)
        self._thread.start()
        for service in (SERVICE, self._incarnation):  # by the latter a router finds that it is who it was
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._supervision = asyncio.create_task(self._supervise(), name="worker-host")
        _log.info("worker_started", worker_id=self._config.worker_id, address=self._address, model=self._model.name)

    def _bind(self) -> int:
        address = _join(self._config.listen_host, self._config.listen_port)
        try:
            return add_port(self._server, address, self._config.tls)
        except RuntimeError as error:
            raise PreconditionError(
                f"the worker cannot listen on {address} ({error}); free the port, or set listen_port to 0"
            ) from error

    async def _supervise(self) -> None:
        """The one owner of the end: waits for a stop or the first failure, then closes everything."""
        publishing = asyncio.create_task(self._publisher.run(), name="publisher")
        watched = (
            asyncio.create_task(self._stop.wait(), name="stop"),
            asyncio.create_task(self._thread.wait_ended(), name="engine-ended"),
            asyncio.create_task(self._watch_steps(), name="watch-steps"),
            asyncio.create_task(self._quotas.run(), name="quota-watch"),
            asyncio.create_task(self._adapters.run(), name="adapters"),
            asyncio.create_task(self._meter.run(), name="usage"),
        )
        try:
            await asyncio.wait((publishing, *watched), return_when=asyncio.FIRST_COMPLETED)
            self._failure = self._find_failure(publishing, *watched[2:])
            await self._close(publishing)
        finally:
            for task in watched:
                task.cancel()
            self._ended.set()

    def _find_failure(self, *tasks: asyncio.Task[None]) -> BaseException | None:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return error
        return self._thread.failure

    async def _watch_steps(self) -> None:
        while self._thread.stalled_s() < STALL_AFTER_S:  # noqa: ASYNC110 - time passing sets no event
            await asyncio.sleep(_WATCH_S)
        raise StalledError(f"a step has been running for more than {STALL_AFTER_S:g} s")

    async def _close(self, publishing: asyncio.Task[None]) -> None:
        if self._failure is not None:
            _log.error("worker_failed", worker_id=self._config.worker_id, exc_info=self._failure)
            self._thread.abandon(self._failure)
        self._servicer.drain()
        await self._departure.close()
        await self._health.enter_graceful_shutdown()
        publishing.cancel()
        await asyncio.wait((publishing,))
        await self._publisher.leave()
        await self._meter.finish()
        try:
            await self._thread.stop(STOP_GRACE_S)
        except TimeoutError:
            _log.error("engine_thread_hangs", worker_id=self._config.worker_id)
        await self._peers.close()
        if self._metrics is not None:
            await self._metrics.stop()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
        await asyncio.to_thread(self._transfers.close)
        await self._server.stop(STOP_GRACE_S)  # after the engine, so that open calls end with their own status
        await self._stores.close()


def engine_config(config: WorkerConfig) -> EngineConfig:
    """The engine's part of a worker's configuration."""
    return EngineConfig(
        num_step_tokens=config.token_budget,
        num_max_sequences=config.max_num_sequences,
        num_max_waiting=config.max_waiting,
        eviction_policy=config.eviction_policy,
        audit=config.audit,
    )


def _server_options(model: ModelInfo) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", model.max_model_len * TOKEN_BYTES + _MESSAGE_OVERHEAD_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
