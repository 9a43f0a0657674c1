"""Calls workers: one channel per incarnation, one stream per request, every failure turned into a domain error.

A call on a worker that is lost ends at once, not at its deadline. Owned by one event loop. Knows no tenants: the
request token is given to it signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Protocol, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status as StatusMessage
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stemcache.v1 import inference_pb2 as pb
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.errors import (
    ComputationError,
    DeadlineError,
    InvalidRequestError,
    LeavingError,
    LimitExceededError,
    PreconditionError,
    StemcacheError,
    UnavailableError,
    WorkerLostError,
)
from cache_store.index import Incarnation
from cache_store.registry import LEAVING_REASON, RENEW_S, WorkerRecord
from cache_store.telemetry.trace_context import HEADER
from cache_store.tls_files import Component, TlsFiles
from cache_store.tokens import PackedTokens
from cache_store.usage import CachedTokens
from services.router.generation import FinishReason
from services.router.statuses import DETAILS_KEY
from services.tls import component_trust, name_option

_log = structlog.get_logger()

_TLS_REFUSALS = ("handshake failed", "Verification Check failed", "CERTIFICATE", "tls")
"""In gRPC's words for a connection whose other side shows no certificate that fits."""

_OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # the time that one attempt to connect is given
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
THERE_S = 0.5
"""For a worker to say that it is there."""

_LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAUTHENTICATED}
"""Away; stopping; or restarted on the same address, so that the token is for another incarnation."""

_Detail = TypeVar("_Detail", bound=Message)
_Answer = TypeVar("_Answer")

_FINISH = {pb.FINISH_REASON_STOP: FinishReason.STOP, pb.FINISH_REASON_LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """Scheduled for the first time."""

    cached: CachedTokens


@dataclass(frozen=True, slots=True)
class WorkerTokens:
    """Tokens of one sample."""

    sample_index: int
    tokens: PackedTokens
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """The end, with the worker's own times."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int
    preempted_s: float
    recompute_s: float
    swap_s: float
    recomputed_tokens: int
    written_tokens: int


WorkerEvent = WorkerStarted | WorkerTokens | WorkerFinished


ExecuteCall: TypeAlias = "grpc.aio.UnaryStreamCall[worker_pb2.ExecuteRequest, worker_pb2.ExecuteResponse]"

WorkerStub: TypeAlias = "worker_pb2_grpc.WorkerServiceAsyncStub"  # in quotes: known to the type checker only


class _Call(Protocol):
    """Something that runs at a worker."""

    def lose(self) -> None:
        """Its worker is gone."""
        ...

    def close(self) -> None:
        """Ends it at the worker too, where it still runs."""
        ...


class _Connection:
    """Channel to one incarnation and the calls that run on it."""

    def __init__(self, address: str, tls: TlsFiles | None) -> None:
        self.channel = _channel(address, tls)
        self.stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        self.calls: dict[_Call, None] = {}
        """In the order in which they began."""
        self.ending: set[ExecuteCall] = set()
        """Whose last message has come and whose status has not: nobody waits for it."""
        self.is_lost = False

    def lose(self) -> None:
        """Ends all calls: their worker is gone."""
        self.is_lost = True
        for call in list(self.calls):
            call.lose()


class WorkerStream:
    """One request at a worker, for as long as the block runs: leaving it ends the call.

    `lose` makes the reader fail, which the transport alone would do at the deadline only.
    """

    def __init__(self, connection: _Connection, call: ExecuteCall) -> None:
        self._connection = connection
        self._call = call
        self._is_lost = False
        self._has_finished = False

    def __enter__(self) -> WorkerStream:
        self._connection.calls[self] = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.calls.pop(self, None)
        self.close()

    def lose(self) -> None:
        self._is_lost = True
        self._call.cancel()

    def close(self) -> None:
        """Ends the call at the worker too, where it still runs. One that has finished ends by itself."""
        if self._has_finished:
            self._connection.ending.add(self._call)
            self._call.add_done_callback(self._connection.ending.discard)
        else:
            self._call.cancel()

    async def next(self) -> WorkerEvent | None:
        """What comes next, None at the end.

        Raises WorkerLostError where the worker is away, stopping or another incarnation than thought, UnavailableError
        where it is full, and the worker's own errors otherwise.
        """
        message = await self._read()
        if message is None:
            return None
        event = _event(message)
        self._has_finished = isinstance(event, WorkerFinished)
        return event

    async def _read(self) -> worker_pb2.ExecuteResponse | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _from_worker(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_lost and task is not None and not task.cancelling():
                raise WorkerLostError("the worker is gone") from None
            raise
        return message if isinstance(message, worker_pb2.ExecuteResponse) else None


class _Question(Generic[_Answer]):
    """One question and its answer; lost as a stream is."""

    def __init__(self, answer: Awaitable[_Answer]) -> None:
        self._task = asyncio.ensure_future(answer)
        self._is_lost = False

    def lose(self) -> None:
        self._is_lost = True
        self._task.cancel()

    def close(self) -> None:
        self._task.cancel()

    async def answer(self) -> _Answer:
        """Raises StemcacheError."""
        try:
            return await self._task
        except grpc.aio.AioRpcError as error:
            raise _from_worker(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_lost and task is not None and not task.cancelling():
                raise WorkerLostError("the worker is gone") from None
            raise


class WorkerPool:
    """Channels to all workers of a router."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        """`tls`: what this router shows to workers; None where they speak none."""
        self._tls = tls
        self._connections: dict[Incarnation, _Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def execute(
        self, worker: WorkerRecord, request: worker_pb2.ExecuteRequest, timeout_s: float, trace_header: str = ""
    ) -> WorkerStream:
        """Runs one request; entering the stream begins to read it. `trace_header`: its trace, where it is traced."""
        connection = self._connect(worker)
        metadata = ((HEADER, trace_header),) if trace_header else None
        return WorkerStream(connection, connection.stub.Execute(request, timeout=timeout_s, metadata=metadata))

    async def ask(self, worker: WorkerRecord, question: Callable[[WorkerStub], Awaitable[_Answer]]) -> _Answer:
        """Asks one thing. Raises as a stream does, LimitExceededError for a limit of the tenant, and DeadlineError."""
        connection = self._connect(worker)
        asked = _Question(question(connection.stub))
        with _registered(connection, asked):
            return await asked.answer()

    async def is_there(self, worker: WorkerRecord) -> bool:
        """Whether the worker answers, as this incarnation. Half a second is enough to say so."""
        request = health_pb2.HealthCheckRequest(service=worker.incarnation)
        stub = health_pb2_grpc.HealthStub(self._connect(worker).channel)
        try:
            answer = await self.ask(worker, lambda _: stub.Check(request, timeout=THERE_S))
        except StemcacheError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def lose(self, incarnation: Incarnation) -> None:
        """Ends all calls to an incarnation that is gone, and closes its channel."""
        connection = self._connections.pop(incarnation, None)
        if connection is not None:
            connection.lose()
            closing = asyncio.create_task(connection.channel.close(), name="close-channel")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all channels."""
        for incarnation in list(self._connections):
            self.lose(incarnation)
        if self._closing:
            await asyncio.wait(self._closing)

    def _connect(self, worker: WorkerRecord) -> _Connection:
        connection = self._connections.get(worker.incarnation)
        if connection is None:
            connection = self._connections[worker.incarnation] = _Connection(worker.address, self._tls)
        return connection


@contextmanager
def _registered(connection: _Connection, call: _Call) -> Iterator[None]:
    connection.calls[call] = None
    try:
        yield
    finally:
        connection.calls.pop(call, None)
        call.close()


def _event(message: worker_pb2.ExecuteResponse) -> WorkerEvent:
    match message.WhichOneof("event"):
        case "started":
            return WorkerStarted(cached_tokens(message.started.cached_by_tier))
        case "tokens":
            tokens = message.tokens
            return WorkerTokens(tokens.sample_index, PackedTokens(tokens.packed), _FINISH.get(tokens.finish_reason))
        case "finished":
            end = message.finished
            return WorkerFinished(
                queue_s=_seconds(end.queue_duration),
                prefill_s=_seconds(end.prefill_duration),
                decode_s=_seconds(end.decode_duration),
                preemptions=end.preemptions,
                preempted_s=_seconds(end.preempted_duration),
                recompute_s=_seconds(end.recompute_duration),
                swap_s=_seconds(end.swap_duration),
                recomputed_tokens=end.recomputed_tokens,
                written_tokens=end.written_tokens,
            )
    raise ComputationError("the worker sent an event of an unknown kind")


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def cached_tokens(message: pb.CachedByTier) -> CachedTokens:
    """The value of reused tokens."""
    return CachedTokens(message.device_tokens, message.host_tokens, message.disk_tokens, message.peer_tokens)


def _from_worker(error: grpc.aio.AioRpcError) -> StemcacheError:
    """The worker's status as a domain error; what it says about itself goes no further than that."""
    code, message = error.code(), error.details() or ""
    details = _details(error)
    if code is grpc.StatusCode.UNAVAILABLE and (retry := _detail(details, RetryInfo())) is not None:
        info = _detail(details, ErrorInfo())
        kind = LeavingError if info is not None and info.reason == LEAVING_REASON else UnavailableError
        return kind(message, retry.retry_delay.ToMilliseconds() / 1000)
    if any(words in message for words in _TLS_REFUSALS):  # else it would look like a worker that is away, for ever
        _log.error("worker.tls_refused", reason=message)
    if code in _LOST:
        return WorkerLostError("the worker is gone")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        bad = _detail(details, BadRequest())
        field = bad.field_violations[0].field if bad is not None and bad.field_violations else "request"
        return InvalidRequestError(field.replace("sampling.", "sampling_params."), message)
    if code is grpc.StatusCode.FAILED_PRECONDITION and _detail(details, PreconditionFailure()) is not None:
        return PreconditionError(message)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError("the deadline passed before the worker was done")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and (quota := _detail(details, QuotaFailure())) is not None:
        retry = _detail(details, RetryInfo())
        retry_after_s = RENEW_S if retry is None else retry.retry_delay.ToMilliseconds() / 1000
        subject = quota.violations[0].subject if quota.violations else "limit"
        return LimitExceededError(subject, message, retry_after_s)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return UnavailableError("the worker has no room for the request now", RENEW_S)
    return ComputationError(f"the worker failed with {code.name}")


def _channel(address: str, tls: TlsFiles | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    options = (*_OPTIONS, name_option(Component.WORKER))
    return grpc.aio.secure_channel(address, component_trust(tls).credentials(), options=options)


def _details(error: grpc.aio.AioRpcError) -> Sequence[AnyMessage]:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = StatusMessage()
            status.ParseFromString(value)
            return list(status.details)
    return ()


def _detail(details: Sequence[AnyMessage], kind: _Detail) -> _Detail | None:
    """The first detail of that kind, unpacked into `kind`."""
    return next((kind for detail in details if detail.Unpack(kind)), None)
