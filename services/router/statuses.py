"""The one table from domain errors to gRPC statuses, with google.rpc details.

Knows the error tree and grpc, nothing of requests or workers. Holds no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, PreconditionFailure, QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status as StatusMessage

from cache_store.errors import (
    AlreadyExistsError,
    CancelledRequestError,
    ComputationError,
    CorruptDataError,
    DeadlineError,
    InvalidRequestError,
    LimitExceededError,
    NotFoundError,
    PreconditionError,
    StemcacheError,
    StorageError,
    UnauthenticatedError,
    UnavailableError,
    VersionError,
    WorkerLostError,
)
from services.router.generation import GenerationLostError
from services.router.messages import partial_generation

DETAILS_KEY = "grpc-status-details-bin"
ABORT_TIMEOUT_S = 2.0
"""A status waits behind unread messages; for that long."""
MAX_SENTENCE_BYTES = 800
"""A status travels as metadata, of which clients take 8 KiB; the sentence stands in it twice or three times."""

INTERNAL_MESSAGE = "internal error; the server's log has it"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Status:
    """What a caller is told."""

    code: grpc.StatusCode
    message: str
    details: tuple[Message, ...]


def to_status(error: Exception) -> Status:
    """Status of `error`; anything outside the tree is INTERNAL and tells nothing about itself."""
    for kind, code, details in _TABLE:
        if isinstance(error, kind):
            return Status(code, _sentence(error), details(error))
    return Status(grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE, ())


def status_name(error: BaseException) -> str:
    """Name of the status that `error` ends a call with; leaving early is CANCELLED."""
    return to_status(error).code.name if isinstance(error, Exception) else grpc.StatusCode.CANCELLED.name


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """Ends the call with the status of `error`. A caller that reads nothing cannot be told: its call is given up."""
    status = to_status(error)
    if status.code is grpc.StatusCode.INTERNAL:
        _log.error("rpc.crashed", error=type(error).__name__, at=_place(error))
    async with asyncio.timeout(ABORT_TIMEOUT_S):
        await context.abort(status.code, status.message, _trailers(status))
    raise AssertionError("abort returned")


def _trailers(status: Status) -> tuple[tuple[str, bytes], ...]:
    if not status.details:
        return ()
    message = StatusMessage(code=status.code.value[0], message=status.message)
    for detail in status.details:
        packed = AnyMessage()
        packed.Pack(detail)
        message.details.append(packed)
    return ((DETAILS_KEY, message.SerializeToString()),)


def _place(error: Exception) -> str:
    """Where `error` was raised; never its text, which may hold content."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "unknown"


def retry_info(seconds: float) -> RetryInfo:
    """When to come again."""
    delay = Duration()
    delay.FromMilliseconds(max(1, round(seconds * 1000)))
    return RetryInfo(retry_delay=delay)


def _sentence(error: Exception) -> str:
    """What `error` says; where that repeats much of the input, its beginning."""
    text = str(error).encode("utf-8", "replace")
    return text.decode() if len(text) <= MAX_SENTENCE_BYTES else f"{text[:MAX_SENTENCE_BYTES].decode(errors='ignore')}…"


def _nothing(_: Any) -> tuple[Message, ...]:
    return ()


def _invalid(error: InvalidRequestError) -> tuple[Message, ...]:
    violation = BadRequest.FieldViolation(field=error.field, description=_sentence(error))
    return (BadRequest(field_violations=[violation]),)


def _limit(error: LimitExceededError) -> tuple[Message, ...]:
    violation = QuotaFailure.Violation(subject=error.subject, description=_sentence(error))
    return (QuotaFailure(violations=[violation]), retry_info(error.retry_after_s))


def _unavailable(error: UnavailableError) -> tuple[Message, ...]:
    return (retry_info(error.retry_after_s),)


def _precondition(error: StemcacheError) -> tuple[Message, ...]:
    subject = error.what if isinstance(error, VersionError) else ""
    kind = "VERSION" if isinstance(error, VersionError) else "STATE"
    violation = PreconditionFailure.Violation(type=kind, subject=subject, description=_sentence(error))
    return (PreconditionFailure(violations=[violation]),)


def _lost(error: GenerationLostError) -> tuple[Message, ...]:
    partial = partial_generation(error.samples)
    return (partial,) if error.retry_after_s is None else (partial, retry_info(error.retry_after_s))


_TABLE: tuple[tuple[type[StemcacheError], grpc.StatusCode, Callable[[Any], tuple[Message, ...]]], ...] = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT, _invalid),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, _nothing),
    (NotFoundError, grpc.StatusCode.NOT_FOUND, _nothing),
    (AlreadyExistsError, grpc.StatusCode.ALREADY_EXISTS, _nothing),
    (PreconditionError, grpc.StatusCode.FAILED_PRECONDITION, _precondition),
    (LimitExceededError, grpc.StatusCode.RESOURCE_EXHAUSTED, _limit),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE, _unavailable),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED, _nothing),
    (GenerationLostError, grpc.StatusCode.ABORTED, _lost),
    (WorkerLostError, grpc.StatusCode.ABORTED, _nothing),
    (CancelledRequestError, grpc.StatusCode.CANCELLED, _nothing),
    (VersionError, grpc.StatusCode.FAILED_PRECONDITION, _precondition),
    (ComputationError, grpc.StatusCode.INTERNAL, _nothing),
    (CorruptDataError, grpc.StatusCode.DATA_LOSS, _nothing),
    (StorageError, grpc.StatusCode.INTERNAL, _nothing),
)
"""First match wins, so that a subclass stands before its base."""
