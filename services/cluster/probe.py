"""The health of a process that serves nothing else, for the probes of whoever runs it. Knows only yes and no."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cache_store.errors import PreconditionError

READY_SERVICE = "stemcache.supervisor"
"""\"\" is the process."""

_NUM_THREADS = 4
_STATES = health_pb2.HealthCheckResponse


class Probe:
    """Listens within its `with` block."""

    def __init__(self, address: str | None) -> None:
        """`address`: host:port; None: nobody asks. Raises PreconditionError for a port that is taken."""
        self._health = health.HealthServicer()
        self._health.set(READY_SERVICE, _STATES.NOT_SERVING)
        self._server: grpc.Server | None = None
        self.address = ""
        if address is None:
            return
        threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="probe")
        self._server = grpc.server(threads, options=[("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=_NUM_THREADS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise PreconditionError(f"health cannot be told on {address}; free the port or name another") from error
        self.address = f"{address.rpartition(':')[0]}:{port}"

    def say(self, is_ready: bool) -> None:
        """What is true now."""
        self._health.set(READY_SERVICE, _STATES.SERVING if is_ready else _STATES.NOT_SERVING)

    def __enter__(self) -> Self:
        if self._server is not None:
            self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.stop(None)
