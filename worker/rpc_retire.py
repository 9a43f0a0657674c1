"""A worker leaves: it gives what it has cached to others, lets what runs end, and says what came of it.

The others fetch from it as they do for requests, within what each tenant has room for there, and so does whoever gets a
request meanwhile. What is used while it goes on is given in a second round. Runs on the worker's event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import structlog
from google.protobuf import duration_pb2, timestamp_pb2
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.clock import Clock
from cache_store.domain import Epoch, FormatDigest
from cache_store.fence import FenceOrder
from cache_store.hot_prefixes import HotPrefix
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION
from cache_store.request_token import TOKEN_LIFETIME_S, RequestClaims, sign
from cache_store.tls_files import TlsFiles
from worker.engine_thread import EngineThread
from worker.give_away import shares
from worker.rpc_peers import ExchangingEngine
from worker.rpc_tls import peer_channel
from worker.statuses import is_from_worker

GIVE_S = 60.0
"""For each round at most."""

ADOPT_TIMEOUT_S = 15.0
"""For one prefix."""

MAX_SILENT = 2
"""Prefixes in a row to which a taker says nothing at all: it is away then."""

CALL_S = 30.0
"""For the engine to say what it has."""

POLL_S = 0.05

_OLDEST: FenceOrder = (0, Epoch(""), 0)
"""Older than any fence: the taker goes by its own."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taker:
    """Another worker, which stays."""

    address: str
    incarnation: Incarnation
    clock_ahead_s: float
    """Of its clock against this worker's: tokens expire by its own."""
    kv_formats: frozenset[FormatDigest] = frozenset()
    """Of the model and the adapters that it serves; none: not known."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """What came of it."""

    num_moved: int
    """Blocks that others have taken."""
    num_cached: int
    num_running: int
    """Requests that had not ended."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who leaves."""

    incarnation: Incarnation
    cluster_key: bytes
    block_size: int
    address: Callable[[], str]
    generation: Callable[[], int]
    """Of the control data whose fences are in force."""
    tls: TlsFiles | None = None


class Retirement:
    """Of one worker."""

    def __init__(self, thread: EngineThread[ExchangingEngine], identity: Identity, clock: Clock) -> None:
        self._thread = thread
        self._identity = identity
        self._clock = clock

    async def run(self, takers: Sequence[Taker], grace_s: float) -> Farewell:
        """Gives away and waits for what runs, at most `grace_s`; new requests are refused already."""
        until_s = self._clock.monotonic_s() + grace_s
        prefixes = await self._prefixes()
        num_cached = await self._thread.call(lambda engine: engine.load().used_blocks, CALL_S)
        num_moved = await self._give(prefixes, takers)
        while self._thread.num_open and self._clock.monotonic_s() < until_s:  # noqa: ASYNC110 - sets no event
            await asyncio.sleep(POLL_S)
        before = {each.digest: each.order for each in prefixes}
        later = [each for each in await self._prefixes() if before.get(each.digest) != each.order]
        num_moved += await self._give(later, takers)
        farewell = Farewell(num_moved, num_cached, self._thread.num_open)
        _log.info("retired", moved=num_moved, cached=num_cached, running=farewell.num_running)
        return farewell

    async def _prefixes(self) -> list[HotPrefix]:
        return await self._thread.call(lambda engine: engine.exchange.hottest(), CALL_S)

    async def _give(self, prefixes: Sequence[HotPrefix], takers: Sequence[Taker]) -> int:
        """Blocks that were taken."""
        tenants = {prefix.domain.tenant for prefix in prefixes}
        strict = await self._thread.call(
            lambda engine: {tenant for tenant in tenants if engine.exchange.is_strict(tenant)}, CALL_S
        )
        served = [taker.kv_formats for taker in takers]
        parts = await asyncio.to_thread(shares, prefixes, served, strict.__contains__)
        moved = Counter[Incarnation]()
        try:
            async with asyncio.timeout(GIVE_S), asyncio.TaskGroup() as group:
                for taker, part in zip(takers, parts, strict=True):
                    group.create_task(self._give_to(taker, part, moved))
        except TimeoutError:
            _log.warning("give_away_deadline", moved=moved.total())
        return moved.total()

    async def _give_to(self, taker: Taker, prefixes: Sequence[HotPrefix], moved: Counter[Incarnation]) -> None:
        """One prefix after the other. Why one is refused says nothing of the next, which may be another tenant's."""
        num_silent = 0
        async with peer_channel(taker.address, self._identity.tls) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            for prefix in prefixes:
                try:
                    await self._give_one(stub, taker, prefix, moved)
                except grpc.aio.AioRpcError as error:
                    num_silent = 0 if is_from_worker(error) else num_silent + 1
                    _log.warning("give_away_failed", taker=taker.address, reason=error.code().name)
                    if num_silent == MAX_SILENT:
                        return
                else:
                    num_silent = 0

    async def _give_one(
        self,
        stub: worker_pb2_grpc.WorkerServiceAsyncStub,
        taker: Taker,
        prefix: HotPrefix,
        moved: Counter[Incarnation],
    ) -> None:
        """What does not go at once goes on from where it came to."""
        message, num_taken = self._message(prefix), 0
        while num_taken < prefix.num_blocks:
            message.request_token = self._token(taker, prefix)
            response = await stub.AdoptPrefix(message, timeout=ADOPT_TIMEOUT_S)
            if response.block_count == 0:
                break
            num_taken += response.block_count
            moved[taker.incarnation] += response.block_count

    def _token(self, taker: Taker, prefix: HotPrefix) -> bytes:
        claims = RequestClaims(
            domain=prefix.domain,
            request_id="",
            incarnation=taker.incarnation,
            expires_unix_s=self._clock.unix_s() + taker.clock_ahead_s + TOKEN_LIFETIME_S,
            fence_order=_OLDEST,
            control_generation=self._identity.generation(),
        )
        return sign(self._identity.cluster_key, claims)

    def _message(self, prefix: HotPrefix) -> worker_pb2.AdoptPrefixRequest:
        own = self._identity
        clock_time = timestamp_pb2.Timestamp()
        clock_time.FromNanoseconds(round(self._clock.unix_s() * 1e9))
        return worker_pb2.AdoptPrefixRequest(
            protocol_version=PROTOCOL_VERSION,
            prompt=prefix.line.packed(),
            holder=worker_pb2.PeerHint(
                address=own.address(),
                incarnation=own.incarnation,
                block_count=prefix.num_blocks,
                clock_time=clock_time,
            ),
            unused_duration=self._unused(prefix),
        )

    def _unused(self, prefix: HotPrefix) -> duration_pb2.Duration:
        """Since its last use."""
        duration = duration_pb2.Duration()
        duration.FromNanoseconds(round(max(0.0, self._clock.monotonic_s() - prefix.used_s) * 1e9))
        return duration
