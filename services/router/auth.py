"""Refuses callers without a live API key before a message of theirs is read, on the methods that ask for one.

Knows the directory of tenants, nothing of what the methods do. Health and reflection are open to all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc

from cache_store.errors import StemcacheError
from services.router.credentials import api_key_of
from services.router.readiness import SERVICE
from services.router.statuses import abort_with
from services.tenants.directory import TenantDirectory

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # in quotes: a generic to the type checker only
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ApiKeyInterceptor(grpc.aio.ServerInterceptor):
    """The gate of the public port."""

    def __init__(self, directory: TenantDirectory) -> None:
        self._directory = directory

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The real handler for tenants, one that refuses for everybody else."""
        if handler_call_details.method.startswith(f"/{SERVICE}/"):
            try:
                self._directory.authenticate(api_key_of(handler_call_details.invocation_metadata or ()))
            except StemcacheError as error:
                return _refusal(error)
        return await continuation(handler_call_details)


def _refusal(error: StemcacheError) -> Handler:
    """Ends any call with the status of `error`; a message that never comes is not waited for."""

    async def refuse(_: Any, context: Context) -> NoReturn:
        await abort_with(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)
