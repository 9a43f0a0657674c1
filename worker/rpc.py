"""The gRPC edge of a worker: verifies a routed request, hands it to the engine thread, streams what comes back.

The tenant's domain is taken from the verified claims of the request token and from nowhere else. Whatever ends a call
(its deadline, a cancel, a lost connection, an error) ends the request in the engine: `close` stands in a `finally`.
Runs on the event loop of the worker and owns nothing but a counter and whether it drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
import structlog
from google.protobuf import duration_pb2
from stemcache.v1 import inference_pb2
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.clock import Clock
from cache_store.drain_token import verify_drain
from cache_store.errors import DeadlineError, LeavingError, StemcacheError
from cache_store.index import Incarnation
from cache_store.request_token import RequestClaims, verify
from cache_store.telemetry.spans import SpanSink
from cache_store.telemetry.trace_context import TraceContext, from_metadata
from worker.engine_thread import EngineThread
from worker.outbox import Outbox, OutboxItem, SampleTokens
from worker.request_spans import add_spans
from worker.requests import CacheMode, EngineRequest, Finish, Finished, RequestKey, Started
from worker.rpc_cache import PrefixCalls, PrefixEngine, by_tier
from worker.rpc_look import LookCalls, LookedAtEngine, LookIdentity
from worker.rpc_peers import ExchangingEngine, PeerAnswers
from worker.rpc_purge import PurgeCalls, PurgingEngine
from worker.rpc_request import (
    AdapterFormats,
    RoutedMessage,
    adapter_of,
    check_protocol,
    check_protocol_version,
    peer_of,
    to_engine,
)
from worker.runner import ModelInfo
from worker.statuses import to_status

DRAIN_RETRY_AFTER_S = 1.0
"""What whoever does not ask another worker at once is told to wait."""

WRITE_TIMEOUT_S = 60.0
"""A caller that takes no message for that long has its call ended."""

_ABORT_TIMEOUT_S = 2.0
"""A status waits behind unread messages; for that long."""

_FINISH = {
    None: inference_pb2.FINISH_REASON_UNSPECIFIED,
    Finish.STOP: inference_pb2.FINISH_REASON_STOP,
    Finish.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # in quotes: a generic to the type checker only

Retire = Callable[[worker_pb2.DrainRequest], Awaitable[worker_pb2.DrainResponse]]

_log = structlog.get_logger(__name__)


class WorkerEngine(PrefixEngine, PurgingEngine, ExchangingEngine, LookedAtEngine, Protocol):
    """What the edge asks of an engine."""


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """`stemcache.worker.v1.WorkerService` over one engine thread."""

    def __init__(
        self,
        thread: EngineThread[WorkerEngine],
        model: ModelInfo,
        incarnation: Incarnation,
        cluster_key: bytes,
        clock: Clock,
        formats: AdapterFormats,
        retire: Retire,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        spans: SpanSink | None = None,
    ) -> None:
        """`retire` carries out an order to leave, and the worker leaves after it. `spans` None: nothing is traced."""
        self._spans = spans
        self._retire = retire
        self._thread = thread
        self._prefixes = PrefixCalls(thread, clock)
        self.purges = PurgeCalls(thread, incarnation, cluster_key, clock)
        """Up to where tenants' caches are purged."""
        self._peers = PeerAnswers(
            thread, incarnation, cluster_key, model.geometry.block_size, clock, self.purges.admits
        )
        self._looks = LookCalls(thread, LookIdentity(incarnation, cluster_key, model.geometry.block_size), clock)
        self._model = model
        self._formats = formats
        self._incarnation = incarnation
        self._cluster_key = cluster_key
        self._clock = clock
        self._write_timeout_s = write_timeout_s
        self._next_key = 0
        self._draining = False
        self._num_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        """Whether new requests are refused."""
        return self._draining

    def drain(self) -> None:
        """Refuses new requests from now on; running ones go on."""
        self._draining = True

    async def wait_idle(self) -> None:
        """Returns when no call runs."""
        await self._idle.wait()

    async def Execute(  # type: ignore[override]  # noqa: N802 - gRPC's name; writing, so that `finally` runs at once
        self, request: worker_pb2.ExecuteRequest, context: Context
    ) -> None:
        """Runs one routed request."""
        async with self._answering(context):
            await self._execute(request, context)

    async def LookupPrefix(  # noqa: N802 - gRPC's name, as those below
        self, request: worker_pb2.LookupPrefixRequest, context: Context
    ) -> worker_pb2.LookupPrefixResponse:
        """Says how much of a prompt is cached."""
        async with self._answering(context):
            claims = self._callers_claims(request)
            if not self.purges.admits(claims):
                return worker_pb2.LookupPrefixResponse()
            return await self._prefixes.lookup(request, claims)

    async def PinPrefix(  # noqa: N802
        self, request: worker_pb2.PinPrefixRequest, context: Context
    ) -> worker_pb2.PinPrefixResponse:
        """Pins what is cached of a prompt."""
        async with self._answering(context):
            claims = self._callers_claims(request)
            self._require_open()
            if not self.purges.admits(claims):
                return worker_pb2.PinPrefixResponse()
            return await self._prefixes.pin(request, claims)

    async def UnpinPrefix(  # noqa: N802
        self, request: worker_pb2.UnpinPrefixRequest, context: Context
    ) -> worker_pb2.UnpinPrefixResponse:
        """Ends a pin."""
        async with self._answering(context):
            return await self._prefixes.unpin(request, self._callers_claims(request))

    async def ListPins(  # noqa: N802
        self, request: worker_pb2.ListPinsRequest, context: Context
    ) -> worker_pb2.ListPinsResponse:
        """Lists a tenant's pins."""
        async with self._answering(context):
            return await self._prefixes.list(self._callers_claims(request))

    async def ReadReuse(  # noqa: N802
        self, request: worker_pb2.ReadReuseRequest, context: Context
    ) -> worker_pb2.ReadReuseResponse:
        """Says how often a tenant would hit with more or less room."""
        async with self._answering(context):
            return await self._prefixes.reuse(self._callers_claims(request))

    async def FetchBlocks(  # type: ignore[override]  # noqa: N802 - as Execute
        self, request: worker_pb2.FetchBlocksRequest, context: Context
    ) -> None:
        """Gives blocks to another worker."""
        async with self._answering(context):
            check_protocol_version(request.protocol_version)
            await self._peers.answer(request, context.write)

    async def AdoptPrefix(  # noqa: N802
        self, request: worker_pb2.AdoptPrefixRequest, context: Context
    ) -> worker_pb2.AdoptPrefixResponse:
        """Takes a prefix over from a worker that leaves."""
        async with self._answering(context):
            check_protocol_version(request.protocol_version)
            offer = self._peers.opened(request)
            claims = self._claims(offer)
            self._require_open()
            is_admitted = self.purges.admits(claims)
            return await self._peers.adopt(offer, claims) if is_admitted else worker_pb2.AdoptPrefixResponse()

    async def Drain(self, request: worker_pb2.DrainRequest, context: Context) -> worker_pb2.DrainResponse:  # noqa: N802
        """Leaves."""
        async with self._answering(context):
            check_protocol_version(request.protocol_version)
            verify_drain(self._cluster_key, request.drain_token, self._incarnation, self._clock.unix_s())
            return await self._retire(request)

    async def Purge(self, request: worker_pb2.PurgeRequest, context: Context) -> worker_pb2.PurgeResponse:  # noqa: N802
        """Forgets what a fence makes unreachable."""
        async with self._answering(context):
            check_protocol_version(request.protocol_version)
            return await self.purges.purge(request)

    async def ReadBlockMap(  # noqa: N802
        self, request: worker_pb2.ReadBlockMapRequest, context: Context
    ) -> worker_pb2.ReadBlockMapResponse:
        """Says where blocks lie, to the operator."""
        async with self._answering(context):
            return await self._looks.read(request)

    @asynccontextmanager
    async def _answering(self, context: Context) -> AsyncIterator[None]:
        """One call; it ends with the status of what is raised inside."""
        self._num_calls += 1
        self._idle.clear()
        try:
            yield
        except StemcacheError as error:
            await _abort(context, error)
        except Exception as error:
            if isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError):
                raise
            _log.error("call_failed", error=type(error).__name__, exc_info=error)
            await _abort(context, error)
        finally:
            self._num_calls -= 1
            if self._num_calls == 0:
                self._idle.set()

    async def _execute(self, message: worker_pb2.ExecuteRequest, context: Context) -> None:
        engine_request = self._admit(message)
        parent = None if self._spans is None else from_metadata(context.invocation_metadata())
        try:
            await self._stream(self._thread.submit(engine_request), context, parent)
        finally:
            self._looks.ended(engine_request.key)
            self._thread.close(engine_request.key)

    async def _stream(self, outbox: Outbox, context: Context, parent: TraceContext | None) -> None:
        started: Started | None = None
        while True:
            items = await outbox.take()
            taken_unix_s = self._clock.unix_s()
            for item in items:
                try:
                    async with asyncio.timeout(self._write_timeout_s):
                        await context.write(_to_message(item))
                except TimeoutError as error:
                    raise DeadlineError(f"the caller has read nothing for {self._write_timeout_s:g} s") from error
                if isinstance(item, Finished):
                    if self._spans is not None and parent is not None and started is not None:
                        add_spans(self._spans, parent, taken_unix_s, started, item)
                    return
                if isinstance(item, Started):
                    started = item

    def _admit(self, message: worker_pb2.ExecuteRequest) -> EngineRequest:
        claims = self._callers_claims(message)
        self._require_open()
        self._next_key += 1
        adapter = adapter_of(claims, self._model, self._formats)
        request = to_engine(message, claims, RequestKey(self._next_key), self._model, adapter)
        request = replace(request, peer=peer_of(message, claims, self._clock.unix_s()))
        self._looks.began(request.key, claims.request_id)
        return request if self.purges.admits(claims) else replace(request, cache_mode=CacheMode.PURGED)

    def _claims(self, message: RoutedMessage) -> RequestClaims:
        """Checks in the order in which a sender can be believed: its version, its token, then what it says."""
        check_protocol(message)
        claims = verify(self._cluster_key, message.request_token, self._incarnation, self._clock.unix_s())
        adapter_of(claims, self._model, self._formats)
        return claims

    def _callers_claims(self, message: RoutedMessage) -> RequestClaims:
        """Those of a call that somebody made with a key; another worker has none."""
        claims = self._claims(message)
        self.purges.require_current(claims)
        return claims

    def _require_open(self) -> None:
        if self._draining:
            raise LeavingError("this worker is leaving; ask another one", DRAIN_RETRY_AFTER_S)


async def _abort(context: Context, error: Exception) -> NoReturn:
    """Ends the call with the status of `error`. A caller that reads nothing cannot be told: its call is given up."""
    status = to_status(error)
    async with asyncio.timeout(_ABORT_TIMEOUT_S):
        await context.abort(status.code, status.details, status.trailing_metadata)


def _to_message(item: OutboxItem) -> worker_pb2.ExecuteResponse:
    if isinstance(item, Started):
        started = worker_pb2.ExecuteStarted(cached_tokens=item.cached.total, cached_by_tier=by_tier(item.cached))
        return worker_pb2.ExecuteResponse(started=started)
    if isinstance(item, SampleTokens):
        tokens = worker_pb2.ExecuteTokens(
            sample_index=item.sample_index, packed=item.tokens, finish_reason=_FINISH[item.finish]
        )
        return worker_pb2.ExecuteResponse(tokens=tokens)
    finished = worker_pb2.ExecuteFinished(
        queue_duration=_duration(item.queue_s),
        prefill_duration=_duration(item.prefill_s),
        decode_duration=_duration(item.decode_s),
        preemptions=item.preemptions,
        preempted_duration=_duration(item.preempted_s),
        recompute_duration=_duration(item.recompute_s),
        swap_duration=_duration(item.swap_s),
        recomputed_tokens=item.recomputed_tokens,
        written_tokens=item.written_tokens,
    )
    return worker_pb2.ExecuteResponse(finished=finished)


def _duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
