"""A worker leaves: it gives what it has cached to others, lets what runs end, and says what came of it.

The others fetch from it as they do for requests, within what each tenant has room for there, and so does whoever gets a
request meanwhile. What is used while it goes on is given in a second round. Runs on the worker's event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc
import structlog
from google.protobuf import duration_pb2, timestamp_pb2
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.clock import Clock
from cache_store.domain import Epoch, FormatDigest
from cache_store.errors import InvalidRequestError, StemcacheError
from cache_store.fence import FenceOrder
from cache_store.hot_prefixes import HotPrefix
from cache_store.index import Incarnation
from cache_store.peer_seal import seal_offer
from cache_store.registry import PROTOCOL_VERSION
from cache_store.request_token import TOKEN_LIFETIME_S, RequestClaims, sign
from cache_store.tls_files import TlsFiles
from worker.engine_thread import EngineThread
from worker.give_away import shares
from worker.rpc_peers import ExchangingEngine
from worker.rpc_tls import peer_channel
from worker.statuses import is_from_worker, is_leaving

ROUND_S = 60.0
"""For each round at most, the engine's step before it included."""

ADOPT_TIMEOUT_S = 15.0
"""For one prefix."""

MAX_SILENT = 2
"""Prefixes in a row to which a taker says nothing at all: it is away then."""

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


class _Offers:
    """What was offered to one taker."""

    def __init__(self, taker: Taker) -> None:
        self.taker = taker
        self.untaken: set[HotPrefix] = set()
        self.is_over = False
        """It is away, or leaves too."""

    def wants(self, prefix: HotPrefix) -> bool:
        """Whether to offer it: requests of its format come there, and it was not refused before."""
        is_served = not self.taker.kv_formats or prefix.domain.kv_format in self.taker.kv_formats
        return is_served and not self.is_over and prefix not in self.untaken

    def lacks(self, prefix: HotPrefix) -> bool:
        """Whether it was offered and not taken."""
        return prefix in self.untaken


class Retirement:
    """Of one worker."""

    def __init__(self, thread: EngineThread[ExchangingEngine], identity: Identity, clock: Clock) -> None:
        self._thread = thread
        self._identity = identity
        self._clock = clock

    async def run(self, takers: Sequence[Taker], grace_s: float) -> Farewell:
        """Gives away and waits for what runs, at most `grace_s`; new requests are refused already."""
        until_s = self._clock.monotonic_s() + grace_s
        num_cached = self._thread.load.used_blocks
        given: dict[bytes, int] = {}
        num_moved = await self._round(takers, given)
        while self._thread.num_open and self._clock.monotonic_s() < until_s:  # noqa: ASYNC110 - sets no event
            await asyncio.sleep(POLL_S)
        num_moved += await self._round(takers, given)
        farewell = Farewell(num_moved, num_cached, self._thread.num_open)
        _log.info("retired", moved=num_moved, cached=num_cached, running=farewell.num_running)
        return farewell

    async def _round(self, takers: Sequence[Taker], given: dict[bytes, int]) -> int:
        """Offers what was used since it was `given`; blocks that were taken. An engine that does not answer, because
        its step is long or it has ended, gives nothing."""
        moved = Counter[Incarnation]()
        try:
            async with asyncio.timeout(ROUND_S):
                prefixes = [each for each in await self._prefixes() if given.get(each.digest) != each.order]
                await self._give(prefixes, takers, moved)
                given |= {each.digest: each.order for each in prefixes}
        except (TimeoutError, StemcacheError) as error:
            _log.warning("give_away_cut_short", reason=type(error).__name__, moved=moved.total())
        return moved.total()

    async def _prefixes(self) -> list[HotPrefix]:
        return await self._thread.call(lambda engine: engine.exchange.hottest(), ROUND_S)

    async def _give(self, prefixes: Sequence[HotPrefix], takers: Sequence[Taker], moved: Counter[Incarnation]) -> None:
        """What one does not take in full is offered to the next."""
        tenants = {prefix.domain.tenant for prefix in prefixes}
        strict = await self._thread.call(
            lambda engine: {tenant for tenant in tenants if engine.exchange.is_strict(tenant)}, ROUND_S
        )
        offers = [_Offers(taker) for taker in takers]
        left = list(prefixes)
        while left:
            parts = await asyncio.to_thread(shares, left, [each.wants for each in offers], strict.__contains__)
            async with asyncio.TaskGroup() as group:
                for each, part in zip(offers, parts, strict=True):
                    group.create_task(self._give_to(each, part, moved))
            refused = {
                prefix for each, part in zip(offers, parts, strict=True) for prefix in part if each.lacks(prefix)
            }
            left = [prefix for prefix in left if prefix in refused and prefix.domain.tenant not in strict]

    async def _give_to(self, offers: _Offers, prefixes: Sequence[HotPrefix], moved: Counter[Incarnation]) -> None:
        """One prefix after the other. Why one is refused says nothing of the next, which may be another tenant's."""
        num_silent = 0
        offers.untaken.update(prefixes)
        taker = offers.taker
        async with AsyncExitStack() as stack:
            try:
                channel = await stack.enter_async_context(peer_channel(taker.address, self._identity.tls))
            except InvalidRequestError as error:
                _log.warning("give_away_failed", taker=taker.address, reason=str(error))
                offers.is_over = True
                return
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            for prefix in prefixes:
                try:
                    if await self._give_one(stub, taker, prefix, moved):
                        offers.untaken.discard(prefix)
                    num_silent = 0
                except grpc.aio.AioRpcError as error:
                    num_silent = 0 if is_from_worker(error) else num_silent + 1
                    _log.warning("give_away_failed", taker=taker.address, reason=error.code().name)
                    if num_silent == MAX_SILENT or is_leaving(error):
                        offers.is_over = True
                        return

    async def _give_one(
        self,
        stub: worker_pb2_grpc.WorkerServiceAsyncStub,
        taker: Taker,
        prefix: HotPrefix,
        moved: Counter[Incarnation],
    ) -> bool:
        """Whether all of it is there. What does not go at once goes on from where it came to."""
        num_there = 0
        while num_there < prefix.num_blocks:
            response = await stub.AdoptPrefix(self._message(taker, prefix), timeout=ADOPT_TIMEOUT_S)
            num_there = max(num_there + response.block_count, response.held_block_count)
            moved[taker.incarnation] += response.block_count
            if response.block_count == 0:
                break
        return num_there >= prefix.num_blocks

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

    def _message(self, taker: Taker, prefix: HotPrefix) -> worker_pb2.AdoptPrefixRequest:
        """To be sent now: what it says of clocks gets old."""
        own = self._identity
        clock_time = timestamp_pb2.Timestamp()
        clock_time.FromNanoseconds(round(self._clock.unix_s() * 1e9))
        offer = worker_pb2.AdoptPrefixRequest(
            protocol_version=PROTOCOL_VERSION,
            request_token=self._token(taker, prefix),
            prompt=prefix.line.packed(),
            holder=worker_pb2.PeerHint(
                address=own.address(),
                incarnation=own.incarnation,
                block_count=prefix.num_blocks,
                clock_time=clock_time,
            ),
            unused_duration=self._unused(prefix),
        )
        sealed = seal_offer(own.cluster_key, taker.incarnation, offer.SerializeToString())
        return worker_pb2.AdoptPrefixRequest(protocol_version=PROTOCOL_VERSION, sealed_offer=sealed)

    def _unused(self, prefix: HotPrefix) -> duration_pb2.Duration:
        """Since its last use."""
        duration = duration_pb2.Duration()
        duration.FromNanoseconds(round(max(0.0, self._clock.monotonic_s() - prefix.used_s) * 1e9))
        return duration
