"""Keeps workers in a Ray cluster that others run: the composition root of a supervisor process.

It places each worker as a detached actor, starts again what fails, and lets workers leave in order when it ends. One
that runs already as this supervisor would start it, because an earlier supervisor was killed, is taken over with all
that it has cached. No request passes through here.
"""

from __future__ import annotations

import structlog

from cache_store.clock import SystemClock
from cache_store.errors import UnavailableError
from cache_store.registry import WorkerId
from services.client import AdminClient, ApiError
from services.cluster.probe import Probe
from services.cluster.ray_cluster import RayCluster
from services.cluster.ray_node import RayNode
from services.cluster.stop_signals import StopSignals
from services.cluster.supervision import PartState, RestartPolicy, Supervisor
from services.cluster.up_metrics import shown
from services.cluster.worker_part import WorkerPart, WorkerSpec
from services.settings import component_tls
from services.supervisor_settings import SupervisorSettings
from services.tenants import master_key
from services.tls import component_trust
from worker.actor import Reach, WorkerActor, actor_environment
from worker.config import KvBytes, NumBlocks, RunnerKind, WorkerConfig

DIGEST_POOL = NumBlocks(4096)
START_TIMEOUT_S = 3600.0
"""A node for a worker may first have to be made, and a model be copied there."""

_TICK_S = 0.1

_log = structlog.get_logger()


def keep_workers(settings: SupervisorSettings, stop: StopSignals) -> None:
    """Runs until a signal comes, then lets the workers leave. Raises StemcacheError where it cannot start."""
    specs = [worker_spec(settings, worker_id) for worker_id in settings.worker_ids]
    with (
        Probe(settings.health_listen) as probe,
        shown(settings.metrics, settings.ray_address) as metrics,
        RayNode(settings.ray_address) as node,
        RayCluster.connect(WorkerActor, settings.ray_address) as ray,
    ):
        stop.install()
        _log.info("supervisor.started", workers=settings.worker_ids, metrics_address=metrics.address)
        parts = [WorkerPart(spec, ray, SystemClock()) for spec in specs]
        supervisor = Supervisor([parts], SystemClock(), RestartPolicy(start_timeout_s=START_TIMEOUT_S))
        metrics.supervisor = supervisor
        try:
            while not stop.wait(_TICK_S):
                if failure := node.failure():
                    raise UnavailableError(failure, retry_after_s=1.0)
                for change in supervisor.tick():
                    _log.info("supervisor.part", part=change.part, state=change.state, reason=change.reason)
                probe.say(all(state is PartState.READY for state in supervisor.states().values()))
        finally:
            probe.say(False)
            _log.info("supervisor.stopping")
            if settings.admin_address and supervisor.complete:
                _give_away(settings)
            supervisor.stop(lambda change: _log.info("supervisor.part", part=change.part, state=change.state))


def worker_spec(settings: SupervisorSettings, worker_id: str) -> WorkerSpec:
    """What Ray is to run."""
    master = (
        master_key.from_file(settings.master_key_file)
        if settings.master_key_file
        else master_key.from_value(settings.master_key)
    )
    is_digest = settings.model_folder is None
    config = WorkerConfig(
        worker_id=WorkerId(worker_id),
        model_name=settings.model_name,
        redis_url=settings.redis_url,
        cluster_key=master_key.cluster_key(master),
        pool=DIGEST_POOL if is_digest else KvBytes(settings.kv_bytes),
        host_pool=None if settings.host_bytes is None else KvBytes(settings.host_bytes),
        disk_pool=None if settings.disk_bytes is None else KvBytes(settings.disk_bytes),
        disk_folder=settings.disk_folder,
        runner=RunnerKind.DIGEST if is_digest else RunnerKind.PAGED,
        model_folder=settings.model_folder,
        cache_dir=settings.cache_dir,
        device="cuda" if settings.num_gpus else "cpu",
        torch_threads=settings.torch_threads,
        tls=settings.worker_tls,
        metrics=settings.worker_metrics,
        tracing=settings.tracing,
    )
    return WorkerSpec(
        worker_id=worker_id,
        arguments=(config, Reach.NODE),
        environment=actor_environment(config),
        num_cpus=float(settings.torch_threads),
        num_gpus=settings.num_gpus,
        resources={settings.resource: 1.0} if settings.resource else {},
        fingerprint=config.fingerprint(),
    )


def _give_away(settings: SupervisorSettings) -> None:
    """Others get what is cached, one worker after the other. Where that fails the worker leaves all the same."""
    assert settings.admin_token_file is not None, "checked by the settings"
    tls = component_tls()
    token = settings.admin_token_file.read_text("ascii").strip()
    with AdminClient(settings.admin_address, token, trust=component_trust(tls) if tls else None) as client:
        for worker_id in settings.worker_ids:
            try:
                drained = client.drain_worker(worker_id, settings.drain_s)
            except ApiError as error:
                _log.warning("supervisor.drain_failed", worker_id=worker_id, reason=str(error))
                continue
            _log.info("supervisor.drained", worker_id=worker_id, moved_blocks=drained.moved_blocks)
