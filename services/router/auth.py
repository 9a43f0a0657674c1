"""The gate of the tenants' port: who is calling, and a place for the call, before a message of it is read.

Callers without a live API key are refused. Health and reflection are open to all; they have places of their own, so
that nobody without a key takes those of tenants. Knows nothing of what the methods do. Owned by one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc

from cache_store.errors import StemcacheError, UnavailableError
from services.router.credentials import api_key_of
from services.router.intake import Places, placed
from services.router.limits import RETRY_AFTER_S, Concurrency
from services.router.readiness import TENANT_SERVICES
from services.router.statuses import abort_with
from services.tenants.directory import TenantDirectory

MAX_OPEN_CALLS = 256
"""Calls of health and reflection at once."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # in quotes: a generic to the type checker only
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


_OF_TENANTS = tuple(f"/{service}/" for service in TENANT_SERVICES)
"""How the methods begin that want a key."""


class Gate(grpc.aio.ServerInterceptor):
    """State: how many calls are open."""

    def __init__(self, directory: TenantDirectory, calls: Concurrency, max_open: int = MAX_OPEN_CALLS) -> None:
        """`calls`: places of tenants. `max_open`: calls without a key at once."""
        self._directory = directory
        self._calls = calls
        self._max_open = max_open
        self._num_open = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The real handler behind a place, one that refuses for callers without a key."""
        places: Places = self._open_place
        if handler_call_details.method.startswith(_OF_TENANTS):
            try:
                tenant = self._directory.authenticate(api_key_of(handler_call_details.invocation_metadata or ()))
            except StemcacheError as error:
                return _refusal(error)
            places = partial(self._calls.held, tenant.id)
        handler = await continuation(handler_call_details)
        return None if handler is None else placed(handler, places)

    @contextmanager
    def _open_place(self) -> Iterator[None]:
        if self._num_open >= self._max_open:
            raise UnavailableError("too many calls without a key are open; try again", RETRY_AFTER_S)
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1


def _refusal(error: StemcacheError) -> Handler:
    """Ends any call with the status of `error`; a message that never comes is not waited for."""

    async def refuse(_: Any, context: Context) -> NoReturn:
        await abort_with(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)
