"""How every method of the tenants' services is wrapped: who is calling, and a status of the table for whatever fails.

Owns no state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc

from services.router.credentials import api_key_of
from services.router.statuses import abort_with
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # in quotes: a generic to the type checker only


class TenantServicer(Protocol):
    """A service whose methods belong to tenants."""

    @property
    def directory(self) -> TenantDirectory:
        """Knows who is calling."""
        ...


Self = TypeVar("Self", bound=TenantServicer)
Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[[Self, Request, Context], Awaitable[Response]]
TenantMethod = Callable[[Self, Tenant, Request, Context], Awaitable[Response]]


def for_tenant(method: TenantMethod[Self, Request, Response]) -> Method[Self, Request, Response]:
    """Runs `method` for the caller's tenant and ends with the status of what it raises."""

    @wraps(method)
    async def answered(self: Self, request: Request, context: Context) -> Response:
        try:
            tenant = self.directory.authenticate(api_key_of(context.invocation_metadata() or ()))
            return await method(self, tenant, request, context)
        except Exception as error:  # the edge: nothing may leave without a status of the table
            await abort_with(context, error)

    return answered
