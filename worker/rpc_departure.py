"""An order to leave, from its arrival to the worker's end.

Whoever is to leave says first that it does not stay, and then asks those that would take over whether they do: so of
workers that are ordered to leave at once, by whomever, none counts on another one that leaves as well. Where nobody
stays it refuses, and goes on as before; a worker that has begun to refuse requests leaves, whatever becomes of what it
gives away. Runs on the worker's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.domain import FormatDigest
from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.index import Incarnation
from worker.rpc_retire import Farewell, Identity, Retirement, Taker
from worker.rpc_tls import peer_channel

FAREWELL_S = 0.1
"""After an order to leave was carried out, for its answer to go out."""

STAYS_S = 3.0
"""For another worker to say that it stays."""

_log = structlog.get_logger(__name__)


def stays_service(incarnation: Incarnation) -> str:
    """The name under which a worker's health service says whether it stays."""
    return f"{incarnation}/stays"


class Departure:
    """Of one worker."""

    def __init__(
        self,
        retirement: Retirement,
        identity: Identity,
        health_service: health.aio.HealthServicer,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`begin` has the worker refuse what is new, `end` ends it."""
        self._retirement = retirement
        self._identity = identity
        self._health = health_service
        self._begin = begin
        self._end = end
        self._clock = clock
        self._running: asyncio.Task[worker_pb2.DrainResponse] | None = None
        self._has_left = False

    @property
    def has_left(self) -> bool:
        """Whether it has carried out an order to leave: nothing is to take its place."""
        return self._has_left

    async def say_stays(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Tells others whether this worker stays."""
        await self._health.set(stays_service(self._identity.incarnation), status)

    async def obey(self, order: worker_pb2.DrainRequest) -> worker_pb2.DrainResponse:
        """Leaves. Raises PreconditionError where it leaves already, or nobody stays that would take over."""
        if self._running is not None and not self._running.done():
            raise PreconditionError("this worker is leaving already")
        self._running = asyncio.create_task(self._leave(order), name="leave")
        return await asyncio.shield(self._running)  # whoever gave the order may go away

    async def _leave(self, order: worker_pb2.DrainRequest) -> worker_pb2.DrainResponse:
        await self.say_stays(health_pb2.HealthCheckResponse.NOT_SERVING)
        takers = await self._staying(self._takers(order))
        if not takers:
            await self.say_stays(health_pb2.HealthCheckResponse.SERVING)
            raise PreconditionError(
                "none of the workers that would take over says that it stays: each leaves as well or does not answer; "
                "start another worker before this one leaves"
            )
        try:
            await self._begin()
            farewell = await self._retirement.run(takers, order.grace_duration.ToNanoseconds() / 1e9)
        finally:
            self._has_left = True
            asyncio.get_running_loop().call_later(FAREWELL_S, self._end)
        return _response(farewell)

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
