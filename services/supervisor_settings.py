"""What a supervisor process is told by its environment: which workers it keeps in a Ray cluster, and how they are made.

Paths of models and certificates are those of the nodes where Ray places workers, so nothing here looks at them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.spans import TracingSettings
from cache_store.tls_files import TlsFiles
from services.cli.sizes import size_bytes
from services.settings import Address, SettingsReader, environment

_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,58}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """Everything that a supervisor process is told."""

    ray_address: Address
    worker_id: str
    num_workers: int
    redis_url: str = field(repr=False)
    """As the worker's role, from where workers run."""
    master_key: str = field(repr=False)
    """Text of the master key; empty where a file holds it."""
    master_key_file: Path | None
    model_name: str
    model_folder: Path | None
    """On the workers' nodes; None: the token-digest runner, which has no model."""
    kv_bytes: int
    host_bytes: int | None
    disk_bytes: int | None
    disk_folder: Path | None
    cache_dir: Path | None
    torch_threads: int
    num_gpus: float
    """Of each worker, a share where it is below 1; 0: it runs on the CPU."""
    resource: str
    """A resource of Ray of which each worker takes one, so that it is placed where that is; empty: anywhere."""
    worker_tls: TlsFiles | None
    """Of workers, on their nodes."""
    health_listen: Address | None
    drain_s: float
    admin_address: str
    """A router that lets workers give away what they have cached before they leave; empty: they just drain."""
    admin_token_file: Path | None
    metrics: MetricsListen | None
    """Where this process shows its own."""
    worker_metrics: MetricsListen | None
    """Of workers, on the address of their nodes, where others read it with the token; None: they show none."""
    tracing: TracingSettings | None

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """One worker has the name that was given; several have a number behind it."""
        if self.num_workers == 1:
            return (self.worker_id,)
        return tuple(f"{self.worker_id}-{index}" for index in range(self.num_workers))

    @staticmethod
    def from_environ(environ: Mapping[str, str] | None = None) -> SupervisorSettings:
        """Raises InvalidRequestError, whose field is the variable's name."""
        found = environment() if environ is None else environ
        reader = SettingsReader(found)
        master_key, master_key_file = reader.master_key()
        model_name, model_folder = _model(found)
        admin_address = found.get("STEMCACHE_ADMIN_ADDRESS", "").strip()
        host_bytes, disk_bytes = _size(found, "STEMCACHE_HOST_CACHE"), _size(found, "STEMCACHE_DISK_CACHE")
        if disk_bytes is not None and host_bytes is None:
            raise InvalidRequestError(
                "STEMCACHE_DISK_CACHE",
                "STEMCACHE_DISK_CACHE needs STEMCACHE_HOST_CACHE, from where blocks go to disk",
            )
        num_workers, metrics = reader.whole("STEMCACHE_NUM_WORKERS", 1), reader.metrics()
        return SupervisorSettings(
            ray_address=reader.address("STEMCACHE_RAY_ADDRESS", ""),
            worker_id=_worker_id(found),
            num_workers=num_workers,
            redis_url=reader.redis_url("STEMCACHE_REDIS_URL", ""),
            master_key=master_key,
            master_key_file=master_key_file,
            model_name=model_name,
            model_folder=model_folder,
            kv_bytes=_size(found, "STEMCACHE_KV_CACHE") or 1 << 30,
            host_bytes=host_bytes,
            disk_bytes=disk_bytes,
            disk_folder=_path(found, "STEMCACHE_DISK_FOLDER"),
            cache_dir=_path(found, "STEMCACHE_CACHE_DIR"),
            torch_threads=reader.whole("STEMCACHE_TORCH_THREADS", 1),
            num_gpus=reader.seconds("STEMCACHE_WORKER_GPUS", 0.0),
            resource=found.get("STEMCACHE_RAY_RESOURCE", "").strip(),
            worker_tls=_worker_tls(found),
            health_listen=reader.optional_address("STEMCACHE_HEALTH_LISTEN"),
            drain_s=reader.seconds("STEMCACHE_DRAIN_S", 30.0),
            admin_address=admin_address,
            admin_token_file=reader.file("STEMCACHE_ADMIN_TOKEN_FILE") if admin_address else None,
            metrics=metrics,
            worker_metrics=_worker_metrics(found, metrics, num_workers),
            tracing=reader.tracing(),
        )


def _worker_id(environ: Mapping[str, str]) -> str:
    value = environ.get("STEMCACHE_WORKER_ID", "").strip() or "worker"
    if not _ID.fullmatch(value):
        raise InvalidRequestError(
            "STEMCACHE_WORKER_ID",
            f"STEMCACHE_WORKER_ID is {value!r}; it has 1 to 60 lower case letters, digits, dots and dashes",
        )
    return value


def _model(environ: Mapping[str, str]) -> tuple[str, Path | None]:
    """`name=folder`, or `name` alone for the token-digest runner."""
    text = environ.get("STEMCACHE_MODEL", "").strip()
    name, equals, folder = (part.strip() for part in text.partition("="))
    runner = environ.get("STEMCACHE_RUNNER", "").strip() or "paged"
    if runner not in ("paged", "digest"):
        raise InvalidRequestError("STEMCACHE_RUNNER", f"STEMCACHE_RUNNER is {runner!r}; it is paged or digest")
    if not name or set(name) & set(", \t\n") or bool(equals and folder) != (runner == "paged"):
        form = "name=folder, the folder being that of the workers' nodes" if runner == "paged" else "a name alone"
        raise InvalidRequestError("STEMCACHE_MODEL", f"STEMCACHE_MODEL is {text!r}; it is {form}")
    return name, Path(folder) if folder else None


def _size(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    try:
        return size_bytes(text) if text else None
    except argparse.ArgumentTypeError as error:
        raise InvalidRequestError(name, f"{name}: {error}") from error


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(name, "").strip()
    return Path(text) if text else None


def _worker_metrics(environ: Mapping[str, str], own: MetricsListen | None, num_workers: int) -> MetricsListen | None:
    """Under the token of this process: they are read from other machines."""
    name = "STEMCACHE_WORKER_METRICS_PORT"
    text = environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise InvalidRequestError(name, f"{name} is {text!r}; it is a port, or 0 for a free one")
    port = int(text or 0)
    if port and num_workers > 1:
        raise InvalidRequestError(name, f"{name}: {num_workers} workers may be on one node; leave it out")
    if own is None or not own.token:
        if port:
            raise InvalidRequestError(name, f"{name}: workers show metrics with STEMCACHE_METRICS_TOKEN_FILE only")
        return None
    return MetricsListen(port=port, token=own.token)


def _worker_tls(environ: Mapping[str, str]) -> TlsFiles | None:
    """A folder with the names of a Kubernetes TLS secret."""
    folder = _path(environ, "STEMCACHE_WORKER_TLS_FOLDER")
    return TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt") if folder else None
