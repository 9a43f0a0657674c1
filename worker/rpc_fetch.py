"""Fetches blocks from other workers: carries out the engine's orders on the event loop.

One call per order, ended by its time, by a cancel, or by the first byte that is not what was asked for. What came until
then is whole, compared and handed to the engine; its thread never waits for a network. Owns the channels to other
workers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import grpc
import structlog
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.clock import Clock
from cache_store.errors import CorruptDataError, StemcacheError
from cache_store.index import Incarnation
from cache_store.peer_seal import RANDOM_BYTES, Exchange, answer_seal, block_names, seal_question
from cache_store.peer_token import PEER_TOKEN_LIFETIME_S, PeerClaims, sign_peer
from cache_store.registry import PROTOCOL_VERSION
from cache_store.tls_files import TlsFiles
from worker.peer_stream import CHUNK_BYTES, BlockAssembler
from worker.peers import Fetched, FetchId, FetchOrder
from worker.rpc_tls import peer_channel
from worker.statuses import is_refusal

MAX_CHANNELS = 64
"""To workers that were asked last; more only while all of them answer."""

_Address = tuple[str, Incarnation]

PATIENCE_S = 2.0
"""Whoever sends nothing for that long is taken to be away. Before, it is at work: it answers between two steps."""

_OVERHEAD_BYTES = 64 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", CHUNK_BYTES + _OVERHEAD_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Progress:
    """Of one order."""

    asked_s: float
    opened_s: float = 0.0
    waited_s: float = 0.0
    assembler: BlockAssembler | None = None
    refused: list[str] = field(default_factory=list)


class PeerClient:
    """Implements `worker.peers.Peers`."""

    def __init__(
        self,
        incarnation: Incarnation,
        cluster_key: bytes,
        block_size: int,
        clock: Clock,
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = tls
        self._incarnation = incarnation
        self._cluster_key = cluster_key
        self._block_size = block_size
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Callable[[Fetched], Awaitable[None]] = _nowhere
        self._tasks: dict[FetchId, asyncio.Task[None]] = {}
        self._channels: OrderedDict[_Address, grpc.aio.Channel] = OrderedDict()
        self._users = Counter[_Address]()
        """Fetches that run on each."""
        self._closing: set[asyncio.Future[None]] = set()

    def start(self, deliver: Callable[[Fetched], Awaitable[None]]) -> None:
        """Works on the running loop; `deliver` brings what came to the engine."""
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver

    def order(self, order: FetchOrder) -> None:
        assert self._loop is not None, "not started"
        self._loop.call_soon_threadsafe(self._begin, order)

    def cancel(self, fetch: FetchId) -> None:
        assert self._loop is not None, "not started"
        self._loop.call_soon_threadsafe(self._cancel, fetch)

    async def close(self) -> None:
        """Ends all fetches without a word, and closes the channels."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _begin(self, order: FetchOrder) -> None:
        task = asyncio.ensure_future(self._run(order))
        self._tasks[order.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(order.id, None))

    def _cancel(self, fetch: FetchId) -> None:
        task = self._tasks.get(fetch)
        if task is not None:
            task.cancel()

    async def _run(self, order: FetchOrder) -> None:
        progress = _Progress(self._clock.monotonic_s())
        is_failed, late_s = False, None
        try:
            async with asyncio.timeout(order.timeout_s):
                await self._fetch(order, progress)
        except TimeoutError:
            if progress.assembler is None or not (progress.assembler.blocks or progress.waited_s):
                is_failed = order.timeout_s >= PATIENCE_S
                late_s = order.timeout_s
        except (grpc.aio.AioRpcError, StemcacheError) as error:
            is_failed = not is_refusal(error)
            late_s = None if is_failed else 0.0
            code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
            _log.warning("fetch_failed", reason=code, blocks=order.num_blocks)
        await self._deliver(replace(self._fetched(order, progress, is_failed), late_s=late_s))

    async def _fetch(self, order: FetchOrder, progress: _Progress) -> None:
        nonce = secrets.token_bytes(RANDOM_BYTES)
        exchange = Exchange(order.peer.incarnation, self._incarnation, nonce, self._cluster_key)
        names = block_names(order.domain, order.tokens, order.first_block, self._block_size)
        address = (order.peer.address, order.peer.incarnation)
        self._users[address] += 1
        call = self._stub(address).FetchBlocks(self._question(order, exchange), timeout=order.timeout_s + 1.0)
        try:
            async for message in call:
                match message.WhichOneof("event"):
                    case "opening" if progress.assembler is None:
                        progress.opened_s = self._clock.monotonic_s()
                        if message.opening.block_bytes != order.block_bytes:
                            raise CorruptDataError("the other worker's blocks have another size")
                        seal = answer_seal(order.domain, exchange, message.opening.salt, order.tokens)
                        progress.assembler = BlockAssembler(seal, names, order.block_bytes)
                    case "chunk" if progress.assembler is not None:
                        progress.waited_s += message.chunk.waited_duration.ToNanoseconds() / 1e9
                        await self._feed(progress, progress.assembler, message.chunk.data)
                    case _:
                        raise CorruptDataError("the other worker's answer is out of order")
                if progress.assembler.is_complete:
                    return
        finally:
            call.cancel()
            self._users -= Counter([address])

    async def _feed(self, progress: _Progress, assembler: BlockAssembler, data: bytes) -> None:
        try:
            await asyncio.to_thread(assembler.feed, data)
        except CorruptDataError as error:
            progress.refused.append(str(error))
            raise

    def _question(self, order: FetchOrder, exchange: Exchange) -> worker_pb2.FetchBlocksRequest:
        claims = PeerClaims(
            exchange=exchange,
            tenant=order.domain.tenant,
            domain_tag=order.domain.tag,
            expires_unix_s=self._clock.unix_s() + order.peer.clock_ahead_s + PEER_TOKEN_LIFETIME_S,
            fence_order=order.peer.fence_order,
            control_generation=order.peer.control_generation,
        )
        return worker_pb2.FetchBlocksRequest(
            protocol_version=PROTOCOL_VERSION,
            peer_token=sign_peer(self._cluster_key, claims),
            sealed_prompt=seal_question(order.domain, exchange, order.tokens),
            first_block=order.first_block,
        )

    def _fetched(self, order: FetchOrder, progress: _Progress, is_failed: bool) -> Fetched:
        now_s = self._clock.monotonic_s()
        is_open = progress.assembler is not None
        transfer_s = now_s - progress.opened_s - progress.waited_s if is_open else 0.0
        return Fetched(
            id=order.id,
            blocks=tuple(progress.assembler.blocks) if progress.assembler is not None else (),
            opening_s=progress.opened_s - progress.asked_s if is_open else 0.0,
            transfer_s=max(0.0, transfer_s),
            is_failed=is_failed,
            num_refused=len(progress.refused),
        )

    def _stub(self, address: _Address) -> worker_pb2_grpc.WorkerServiceAsyncStub:
        channel = self._channels.pop(address, None) or peer_channel(address[0], self._tls, _OPTIONS)
        self._channels[address] = channel
        unused = [each for each in self._channels if not self._users[each]]
        for oldest in unused[: max(0, len(self._channels) - MAX_CHANNELS)]:
            closing = asyncio.ensure_future(self._channels.pop(oldest).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return worker_pb2_grpc.WorkerServiceStub(channel)


async def _nowhere(fetched: Fetched) -> None:
    raise AssertionError(f"{fetched} came before anybody ordered something")
