"""Lets only the operator call: `authorization: Bearer <admin token>` on every call of the admin port.

Knows the token, nothing of the services behind it. Reflection and health on that port ask for the token too.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc

from cache_store.errors import InvalidRequestError, UnauthenticatedError
from services.router.statuses import abort_with

MIN_ADMIN_TOKEN_CHARS = 20
_SCHEME = "bearer "

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # in quotes: a generic to the type checker only
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AdminAuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the token with UNAUTHENTICATED, before a message is read."""

    def __init__(self, admin_token: str) -> None:
        if len(admin_token) < MIN_ADMIN_TOKEN_CHARS or not admin_token.isascii() or not admin_token.isprintable():
            raise InvalidRequestError(
                "admin_token",
                f"the admin token needs at least {MIN_ADMIN_TOKEN_CHARS} printable ASCII characters; "
                "`openssl rand -hex 32` makes one",
            )
        self._token = admin_token.encode("ascii")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The real handler for the operator, one that refuses for everybody else, whatever the method is."""
        if self._is_operator(handler_call_details.invocation_metadata):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)  # a message that never comes is not waited for

    def _is_operator(self, metadata: Any) -> bool:
        given = [value for name, value in metadata or () if name == "authorization"]
        if len(given) != 1 or not isinstance(given[0], str) or given[0][: len(_SCHEME)].lower() != _SCHEME:
            return False
        token = given[0][len(_SCHEME) :].encode("utf-8", "surrogatepass")
        return hmac.compare_digest(token, self._token)


async def _refuse(_: Any, context: Context) -> NoReturn:
    error = UnauthenticatedError("this is the operator's port; send `authorization: Bearer <admin token>`")
    await abort_with(context, error)
