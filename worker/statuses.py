"""The one table from domain errors to statuses at a worker's edge, with google.rpc details.

The reader is a router: it retries UNAVAILABLE elsewhere and passes INVALID_ARGUMENT on. Anything that is no
StemcacheError is a fault of this program and shows nothing of itself.
"""

from __future__ import annotations

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from cache_store.errors import (
    AlreadyExistsError,
    CancelledRequestError,
    DeadlineError,
    InvalidRequestError,
    LeavingError,
    LimitExceededError,
    NotFoundError,
    PreconditionError,
    StemcacheError,
    UnauthenticatedError,
    UnavailableError,
    VersionError,
    WorkerLostError,
)
from cache_store.registry import LEAVING_REASON

_CODES: dict[type[StemcacheError], int] = {
    InvalidRequestError: code_pb2.INVALID_ARGUMENT,
    UnauthenticatedError: code_pb2.UNAUTHENTICATED,
    VersionError: code_pb2.FAILED_PRECONDITION,
    PreconditionError: code_pb2.FAILED_PRECONDITION,
    NotFoundError: code_pb2.NOT_FOUND,
    AlreadyExistsError: code_pb2.ALREADY_EXISTS,
    LimitExceededError: code_pb2.RESOURCE_EXHAUSTED,
    UnavailableError: code_pb2.UNAVAILABLE,
    LeavingError: code_pb2.UNAVAILABLE,
    WorkerLostError: code_pb2.UNAVAILABLE,  # as the router sees a broken connection; ABORTED is its own to say
    DeadlineError: code_pb2.DEADLINE_EXCEEDED,
    CancelledRequestError: code_pb2.CANCELLED,
}

_DETAILS_KEY = "grpc-status-details-bin"


def to_status(error: Exception) -> grpc.Status:
    """Status of `error` with its details in the trailing metadata."""
    code = _CODES.get(type(error), code_pb2.INTERNAL) if isinstance(error, StemcacheError) else code_pb2.INTERNAL
    message = str(error) if isinstance(error, StemcacheError) else "internal error of the worker; see its log"
    status = status_pb2.Status(code=code, message=message)
    for detail in _details(error):
        status.details.add().Pack(detail)
    grpc_status: grpc.Status = rpc_status.to_status(status)
    return grpc_status


def is_from_worker(error: grpc.aio.AioRpcError) -> bool:
    """Whether another worker answered so, rather than nobody."""
    return any(key == _DETAILS_KEY for key, _ in error.trailing_metadata() or ())


def is_refusal(error: Exception) -> bool:
    """Whether another worker answered that it is there and cannot now."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    return error.code() is grpc.StatusCode.UNAVAILABLE and is_from_worker(error)


def is_leaving(error: grpc.aio.AioRpcError) -> bool:
    """Whether another worker answered that it leaves."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            info = error_details_pb2.ErrorInfo()
            details = status_pb2.Status.FromString(value).details
            return any(each.Unpack(info) and info.reason == LEAVING_REASON for each in details)
    return False


def _details(error: Exception) -> list[Message]:
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=str(error))
        return [error_details_pb2.BadRequest(field_violations=[violation])]
    if isinstance(error, LimitExceededError):
        exceeded = error_details_pb2.QuotaFailure.Violation(subject=error.subject, description=str(error))
        return [error_details_pb2.QuotaFailure(violations=[exceeded]), _retry_info(error.retry_after_s)]
    if isinstance(error, PreconditionError):
        state = error_details_pb2.PreconditionFailure.Violation(type="STATE", description=str(error))
        return [error_details_pb2.PreconditionFailure(violations=[state])]
    if isinstance(error, LeavingError):
        return [_retry_info(error.retry_after_s), error_details_pb2.ErrorInfo(reason=LEAVING_REASON)]
    if isinstance(error, UnavailableError):
        return [_retry_info(error.retry_after_s)]
    return []


def _retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(round(seconds * 1000))
    return error_details_pb2.RetryInfo(retry_delay=delay)
