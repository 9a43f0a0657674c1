"""What calling the API can raise: one tree.

    StemcacheError
    └── ApiError                     any status but OK; carries code, message and details
        ├── ApiInvalidRequestError   INVALID_ARGUMENT, OUT_OF_RANGE: `details.field_violations` says what to change
        ├── ApiUnauthenticatedError  UNAUTHENTICATED, PERMISSION_DENIED: no credential, or one that opens nothing
        ├── ApiNotFoundError         NOT_FOUND
        ├── ApiConflictError         ALREADY_EXISTS, FAILED_PRECONDITION
        ├── ApiLimitError            RESOURCE_EXHAUSTED: a limit of the tenant; `details.retry_after_s`
        ├── ApiUnavailableError      UNAVAILABLE: cannot serve now, or not reachable; `details.retry_after_s`
        ├── ApiDeadlineError         DEADLINE_EXCEEDED
        ├── ApiCancelledError        CANCELLED
        └── ApiAbortedError          ABORTED: the worker was lost; `details.partial` holds what had been made

Every other status (INTERNAL, UNIMPLEMENTED, …) is an ApiError itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.errors import StemcacheError
from services.client.messages import completion_of
from services.client.results import Completion

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """What is wrong with one field of the request."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class QuotaViolation:
    """Which limit was reached."""

    subject: str
    description: str


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """What the server said beside code and message."""

    retry_after_s: float | None = None
    field_violations: tuple[FieldViolation, ...] = ()
    quota_violations: tuple[QuotaViolation, ...] = ()
    partial: tuple[Completion, ...] = ()
    """What had been made when the worker was lost."""


class ApiError(StemcacheError):
    """A call that ended with a status other than OK."""

    def __init__(self, code: grpc.StatusCode, message: str, details: ErrorDetails) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class ApiInvalidRequestError(ApiError):
    """The request cannot be served as it is."""


class ApiUnauthenticatedError(ApiError):
    """No credential, or one that opens nothing."""


class ApiNotFoundError(ApiError):
    """Absent for this caller."""


class ApiConflictError(ApiError):
    """The name is taken, or the state does not allow it."""


class ApiLimitError(ApiError):
    """A limit of the tenant."""


class ApiUnavailableError(ApiError):
    """Cannot serve now, or cannot be reached."""


class ApiDeadlineError(ApiError):
    """The deadline passed or cannot be met."""


class ApiCancelledError(ApiError):
    """The call was cancelled."""


class ApiAbortedError(ApiError):
    """The worker was lost after the first token."""


_BY_CODE: dict[grpc.StatusCode, type[ApiError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: ApiInvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: ApiInvalidRequestError,
    grpc.StatusCode.UNAUTHENTICATED: ApiUnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: ApiUnauthenticatedError,
    grpc.StatusCode.NOT_FOUND: ApiNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: ApiConflictError,
    grpc.StatusCode.FAILED_PRECONDITION: ApiConflictError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ApiLimitError,
    grpc.StatusCode.UNAVAILABLE: ApiUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: ApiDeadlineError,
    grpc.StatusCode.CANCELLED: ApiCancelledError,
    grpc.StatusCode.ABORTED: ApiAbortedError,
}


class _FailedCall(Protocol):
    """What every error of grpc and grpc.aio has; the stubs declare it only on the aio one."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def api_error(error: grpc.RpcError) -> ApiError:
    """The tree's error for a failed call."""
    call = cast(_FailedCall, error)
    code = call.code()
    return _BY_CODE.get(code, ApiError)(code, call.details() or code.name, _details(call.trailing_metadata()))


@contextmanager
def api_errors() -> Iterator[None]:
    """Turns failed calls inside the block into the tree's errors."""
    try:
        yield
    except grpc.RpcError as error:
        raise api_error(error) from error


def _details(metadata: Iterable[tuple[str, str | bytes]] | None) -> ErrorDetails:
    packed = next((value for key, value in metadata or () if key == _DETAILS_KEY), None)
    if not isinstance(packed, bytes):
        return ErrorDetails()
    try:
        return _read(status_pb2.Status.FromString(packed))
    except DecodeError:  # code and message stand without them
        return ErrorDetails()


def _read(status: status_pb2.Status) -> ErrorDetails:
    retry, bad, quota = error_details_pb2.RetryInfo(), error_details_pb2.BadRequest(), error_details_pb2.QuotaFailure()
    partial = pb.PartialGeneration()
    retry_after_s: float | None = None
    for detail in status.details:
        if detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
        for message in (bad, quota, partial):
            detail.Unpack(message)
    return ErrorDetails(
        retry_after_s=retry_after_s,
        field_violations=tuple(FieldViolation(each.field, each.description) for each in bad.field_violations),
        quota_violations=tuple(QuotaViolation(each.subject, each.description) for each in quota.violations),
        partial=tuple(completion_of(each) for each in partial.completions),
    )
