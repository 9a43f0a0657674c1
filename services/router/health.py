"""The standard health service: answers Check, and Watch without ever waiting for somebody who does not read.

Knows names and states only; `services/router/readiness.py` says what is true. Owned by one event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cache_store.errors import DeadlineError, NotFoundError
from services.router.statuses import abort_with

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # in quotes: a generic to the type checker only

_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """States by service; "" is the process."""

    def __init__(self, write_s: float) -> None:
        """`write_s`: how long a watcher may leave a state unread."""
        self._write_s = write_s
        self._states: dict[str, int] = {"": health_pb2.HealthCheckResponse.SERVING}
        self._changed = asyncio.Event()

    def set(self, service: str, state: int) -> None:
        """Says another state, to watchers too, at their own pace."""
        self._states[service] = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Context) -> Any:  # noqa: N802 - gRPC's name
        """The state now."""
        state = self._states.get(request.service)
        if state is None:
            await abort_with(context, NotFoundError("no such service is watched here"))
        return health_pb2.HealthCheckResponse(status=state)

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: N802 - gRPC's name
        """The state now and whenever it has changed; a slow watcher misses what was true for a moment."""
        said: int | None = None
        while True:
            changed = self._changed
            state = self._states.get(request.service, _UNKNOWN)
            if state != said:
                await self._tell(context, health_pb2.HealthCheckResponse(status=state))
                said = state
            else:
                await changed.wait()

    async def _tell(self, context: Context, message: Any) -> None:
        try:
            async with asyncio.timeout(self._write_s):
                await context.write(message)
        except TimeoutError:
            await abort_with(context, DeadlineError(f"the stream was not read for {self._write_s:g} s"))
