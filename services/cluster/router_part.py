"""The router as a supervised process: what it is told, and how it is asked whether it is ready."""

from __future__ import annotations

import errno
import random
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cache_store.telemetry.spans import TracingSettings
from services.cluster.process_part import ProcessPart

SERVICE = "stemcache.v1.InferenceService"
_PROBE_TIMEOUT_S = 0.5
_LASTING_PORTS = range(20_000, 32_768)
_PORT_TRIES = 20
_NOT_INHERITED = (
    "STEMCACHE_MASTER_KEY",
    "STEMCACHE_REDIS_URL_FILE",
    "STEMCACHE_CONTROL_REDIS_URL_FILE",
    "STEMCACHE_TLS_",  # of the command line's own calls; a whole system on one machine is plain
    "STEMCACHE_PUBLIC_TLS_",
    "STEMCACHE_HEALTH_LISTEN",
)


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """What a router process is told. Secrets go by file or environment, never by argument."""

    redis_url: str = field(repr=False)
    control_redis_url: str = field(repr=False)
    master_key: Mapping[str, str] = field(repr=False)
    """The variable that holds the master key, or names its file."""
    admin_token_file: Path
    listen: str
    admin_listen: str
    models: Mapping[str, Path]
    """Folder of each model's tokenizer."""
    data_dir: Path
    log: Path
    console_listen: str = ""
    """Empty: no console."""
    metrics_listen: str = "off"
    metrics_targets: str = ""
    """Others that it names to Prometheus."""
    tracing: TracingSettings | None = None

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Environment of the process; what `inherited` says about limits stays."""
        return {
            **{name: value for name, value in inherited.items() if not name.startswith(_NOT_INHERITED)},
            **self.master_key,
            "STEMCACHE_REDIS_URL": self.redis_url,
            "STEMCACHE_CONTROL_REDIS_URL": self.control_redis_url,
            "STEMCACHE_ADMIN_TOKEN_FILE": str(self.admin_token_file),
            "STEMCACHE_LISTEN": self.listen,
            "STEMCACHE_ADMIN_LISTEN": self.admin_listen,
            "STEMCACHE_CONSOLE_LISTEN": self.console_listen,
            "STEMCACHE_MODELS": ",".join(f"{name}={folder}" for name, folder in self.models.items()),
            "STEMCACHE_DATA_DIR": str(self.data_dir),
            "STEMCACHE_METRICS_LISTEN": self.metrics_listen,
            "STEMCACHE_METRICS_TARGETS": self.metrics_targets,
            **self._tracing(),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
        }

    def _tracing(self) -> dict[str, str]:
        if self.tracing is None:
            return {}
        return {
            "STEMCACHE_OTLP_ENDPOINT": self.tracing.endpoint,
            "STEMCACHE_TRACES_PER_S": str(self.tracing.traces_per_s),
        }


def router_part(plan: RouterPlan, inherited: Mapping[str, str]) -> ProcessPart:
    """The router. It is ready when it says so on its own health service: workers seen, control data read."""
    arguments = [sys.executable, "-m", "services.router"]
    return ProcessPart("router", arguments, plan.environment(inherited), plan.log, lambda: is_serving(plan.listen))


def is_serving(address: str) -> bool:
    """Whether the API at `address` answers and says that it serves."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=_PROBE_TIMEOUT_S)
        except grpc.RpcError:  # not listening yet, or not yet knowing the service
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def free_port(host: str) -> int:
    """A port that nobody listens on now.

    Below those that systems give to whoever connects: until it is listened on, the rest of the system makes hundreds of
    connections. Raises OSError where the host has no such address.
    """
    for port in random.sample(_LASTING_PORTS, _PORT_TRIES):
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])
