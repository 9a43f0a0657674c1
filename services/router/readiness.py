"""What the health service says: alive always, ready while the control data was read and a worker takes requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from grpc_health.v1 import health_pb2
from stemcache.v1 import cache_pb2, inference_pb2, usage_pb2

from services.router.health import Health

SERVICE: str = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
CACHE_SERVICE: str = cache_pb2.DESCRIPTOR.services_by_name["CacheService"].full_name
USAGE_SERVICE: str = usage_pb2.DESCRIPTOR.services_by_name["UsageService"].full_name
TENANT_SERVICES = (SERVICE, CACHE_SERVICE, USAGE_SERVICE)
"""What tenants call: behind a key, and ready together."""

CHECK_S = 0.1

_log = structlog.get_logger()


class Readiness:
    """Keeps one health service up to date. Owned by one event loop."""

    def __init__(self, health: Health, is_ready: Callable[[], bool]) -> None:
        self._health = health
        self._is_ready = is_ready
        self._is_draining = False
        self._said: bool | None = None

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            self._say(self._is_ready() and not self._is_draining)
            await asyncio.sleep(CHECK_S)

    def drain(self) -> None:
        """Not ready any more, for good."""
        self._is_draining = True
        self._say(False)

    def _say(self, is_ready: bool) -> None:
        if is_ready is self._said:
            return
        self._said = is_ready
        states = health_pb2.HealthCheckResponse
        for service in TENANT_SERVICES:
            self._health.set(service, states.SERVING if is_ready else states.NOT_SERVING)
        _log.info("router.ready" if is_ready else "router.not_ready")
