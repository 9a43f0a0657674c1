"""An order to leave, from its arrival to the worker's end.

Whoever is to leave says first that it does not stay, and then asks those that would take over whether they do: so of
workers that are ordered to leave at once, by whomever, none counts on another one that leaves as well. Where nobody
stays it refuses, and goes on as before; a worker that has begun to refuse requests leaves, whatever becomes of what it
gives away. What it says is kept nowhere: whoever asks is told what is true then, however a departure has ended.
Runs on the worker's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.domain import FormatDigest
from cache_store.errors import InvalidRequestError, PreconditionError, UnavailableError
from cache_store.index import Incarnation
from worker.rpc_retire import Farewell, Identity, Retirement, Taker
from worker.rpc_tls import peer_channel

FAREWELL_S = 0.1
"""After an order to leave was carried out, for its answer to go out."""

AGAIN_S = 1.0
"""After which whoever gave an order to a worker that ended meanwhile may ask again."""

STAYS_S = 3.0
"""For another worker to say that it stays."""

CLOSE_S = 2.0
"""For a departure to end when its worker does."""

_log = structlog.get_logger(__name__)


def stays_service(incarnation: Incarnation) -> str:
    """The name under which a worker's health service says whether it stays. To be asked, not watched."""
    return f"{incarnation}/stays"


class StayingHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """A worker's health service, and whether it stays."""

    def __init__(
        self, health_service: health_pb2_grpc.HealthServicer, incarnation: Incarnation, stays: Callable[[], bool]
    ) -> None:
        self._health = health_service
        self._service = stays_service(incarnation)
        self._stays = stays

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """The state now."""
        if request.service != self._service:
            return await self._health.Check(request, context)
        state = health_pb2.HealthCheckResponse
        return state(status=state.SERVING if self._stays() else state.NOT_SERVING)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """The state now and whenever it has changed, but for whether it stays."""
        await self._health.Watch(request, context)


class Departure:
    """Of one worker."""

    def __init__(
        self,
        retirement: Retirement,
        identity: Identity,
        serves: Callable[[], bool],
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`serves`: whether the worker takes what is new. `begin` ends that, before it waits for anything; `end` ends
        the worker."""
        self._retirement = retirement
        self._identity = identity
        self._serves = serves
        self._begin = begin
        self._end = end
        self._clock = clock
        self._running: asyncio.Task[worker_pb2.DrainResponse] | None = None
        self._is_under_way = False
        self._has_left = False

    @property
    def has_left(self) -> bool:
        """Whether it has carried out an order to leave: nothing is to take its place."""
        return self._has_left

    @property
    def stays(self) -> bool:
        """Whether others may count on this worker."""
        return self._serves() and not self._is_under_way

    async def obey(self, order: worker_pb2.DrainRequest) -> worker_pb2.DrainResponse:
        """Leaves. Raises PreconditionError where it leaves already, or nobody stays that would take over, and
        UnavailableError where the worker ends before."""
        if self._running is not None and not self._running.done():
            raise PreconditionError("this worker is leaving already")
        running = self._running = asyncio.create_task(self._leave(order), name="leave")
        running.add_done_callback(
            lambda ended: ended.cancelled() or ended.exception()
        )  # nobody may be there to hear it
        await asyncio.wait((running,))  # whoever gave the order may go away
        if running.cancelled():
            raise UnavailableError("this worker ended before it had left", AGAIN_S)
        return running.result()

    async def close(self) -> None:
        """The worker ends: so does a departure, wherever it is."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait((self._running,), timeout=CLOSE_S)

    async def _leave(self, order: worker_pb2.DrainRequest) -> worker_pb2.DrainResponse:
        with self._under_way():
            takers = await self._staying(self._takers(order))
            if not takers:
                raise PreconditionError(
                    "none of the workers that would take over says that it stays: each leaves as well or does not "
                    "answer; start another worker before this one leaves"
                )
            try:
                await self._begin()
                farewell = await self._retirement.run(takers, order.grace_duration.ToNanoseconds() / 1e9)
            finally:
                self._has_left = True
                asyncio.get_running_loop().call_later(FAREWELL_S, self._end)
            return _response(farewell)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """However it ends: a worker that has begun to leave by then does not serve, any other one stays again."""
        self._is_under_way = True
        try:
            yield
        except Exception as error:
            _log.warning("departure_cut_short", reason=type(error).__name__, stays=self._serves())
            raise
        finally:
            self._is_under_way = False

    def _takers(self, order: worker_pb2.DrainRequest) -> list[Taker]:
        now_s = self._clock.unix_s()
        return [
            Taker(
                peer.address,
                Incarnation(peer.incarnation),
                peer.clock_time.ToNanoseconds() / 1e9 - now_s,
                frozenset(map(FormatDigest, peer.kv_formats)),
            )
            for peer in order.peers
        ]

    async def _staying(self, takers: Sequence[Taker]) -> list[Taker]:
        answers = await asyncio.gather(*map(self._stays, takers))
        return [taker for taker, stays in zip(takers, answers, strict=True) if stays]

    async def _stays(self, taker: Taker) -> bool:
        request = health_pb2.HealthCheckRequest(service=stays_service(taker.incarnation))
        try:
            async with peer_channel(taker.address, self._identity.tls) as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=STAYS_S)
        except (grpc.aio.AioRpcError, InvalidRequestError) as error:
            reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
            _log.warning("taker_does_not_answer", taker=taker.address, reason=reason)
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _response(farewell: Farewell) -> worker_pb2.DrainResponse:
    return worker_pb2.DrainResponse(
        moved_blocks=farewell.num_moved,
        cached_blocks=farewell.num_cached,
        handed_over_requests=farewell.num_running,
    )
