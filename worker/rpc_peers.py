"""Blocks given to other workers, at the gRPC edge: who asks is checked, what is sent is sealed and bounded.

A question names its domain by a tag; here the domain is looked up, so that nobody who does not know its root reads the
answer. Fences count as for requests, before every batch that is sent. Batches are copied between two steps
(`worker/exchange.py`) and sealed on another thread; a caller that does not read gets no further than its buffers and is
given up. Where a request here is just computing what is asked for, the answer follows it. Runs on the worker's event
loop.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from google.protobuf import duration_pb2
from stemcache.worker.v1 import worker_pb2

from cache_store.block_name import BlockName
from cache_store.block_seal import BlockSeal
from cache_store.clock import Clock
from cache_store.domain import Domain, TenantId
from cache_store.errors import DeadlineError, InvalidRequestError, UnavailableError
from cache_store.index import Incarnation
from cache_store.peer_seal import RANDOM_BYTES, answer_seal, block_names, open_offer, open_question
from cache_store.peer_token import PeerClaims, verify_peer
from cache_store.request_token import RequestClaims
from cache_store.tokens import TOKEN_BYTES, PackedTokens
from worker.engine_thread import EngineThread
from worker.exchange import Exchange, Exported
from worker.peer_stream import sealed_chunks
from worker.rpc_request import packed_prompt, peer_hint
from worker.threaded_engine import ThreadedEngine

MAX_ANSWERS = 8
MAX_TENANT_ANSWERS = 4
"""At once."""

BATCH_BYTES = 16 << 20
"""Copied between two steps, at least one block: some milliseconds."""

MAX_ANSWER_S = 30.0
"""However long the caller would wait."""

WRITE_TIMEOUT_S = 5.0
"""A caller that takes no chunk for that long has its call ended."""

WAIT_S = 10.0
"""For the step that runs."""

FOLLOW_S = 0.01
"""How often it is looked whether more has been computed."""

RETRY_AFTER_S = 0.5

Send = Callable[[worker_pb2.FetchBlocksResponse], Awaitable[None]]
Admits = Callable[[RequestClaims], bool]
_Result = TypeVar("_Result")


class ExchangingEngine(ThreadedEngine, Protocol):
    """An engine that gives blocks to others."""

    @property
    def exchange(self) -> Exchange:
        """What it gives and takes."""
        ...


class PeerAnswers:
    """Of one worker."""

    def __init__(
        self,
        thread: EngineThread[ExchangingEngine],
        incarnation: Incarnation,
        cluster_key: bytes,
        block_size: int,
        clock: Clock,
        admits: Admits,
    ) -> None:
        """`admits`: whether something may be reused under such claims, as of now."""
        self._thread = thread
        self._incarnation = incarnation
        self._cluster_key = cluster_key
        self._block_size = block_size
        self._clock = clock
        self._admits = admits
        self._running: Counter[TenantId] = Counter()

    async def answer(self, message: worker_pb2.FetchBlocksRequest, send: Send) -> None:
        """Sends what is here. Raises UnauthenticatedError, InvalidRequestError, UnavailableError, DeadlineError."""
        claims = verify_peer(self._cluster_key, message.peer_token, self._incarnation, self._clock.unix_s())
        with self._place(claims.tenant):
            try:
                async with asyncio.timeout(MAX_ANSWER_S):
                    await self._answer(message, claims, send)
            except TimeoutError:
                raise DeadlineError(f"an answer lasts at most {MAX_ANSWER_S:g} s") from None

    def opened(self, message: worker_pb2.AdoptPrefixRequest) -> worker_pb2.AdoptPrefixRequest:
        """What another worker offers. Raises UnauthenticatedError."""
        offer = open_offer(self._cluster_key, self._incarnation, message.sealed_offer)
        return worker_pb2.AdoptPrefixRequest.FromString(offer)

    async def adopt(
        self, message: worker_pb2.AdoptPrefixRequest, claims: RequestClaims
    ) -> worker_pb2.AdoptPrefixResponse:
        """Fetches a prefix from a worker that leaves; what came of it. Claims and fences were checked."""
        tokens = packed_prompt(message.prompt)
        hint = peer_hint(message.holder, claims, self._clock.unix_s())
        unused = message.unused_duration.ToNanoseconds() / 1e9 if message.HasField("unused_duration") else math.inf
        state = await self._ask(lambda engine: engine.exchange.adopt(hint, claims.domain, tokens, max(0.0, unused)))
        while state is not None and state.end_s is None:  # noqa: ASYNC110 - it ends on another thread, and always does
            await asyncio.sleep(FOLLOW_S)
        num_held = await self._ask(lambda engine: engine.exchange.num_held(claims.domain, tokens))
        num_new = 0 if state is None else state.num_whole
        return worker_pb2.AdoptPrefixResponse(block_count=num_new, held_block_count=num_held)

    @contextmanager
    def _place(self, tenant: TenantId) -> Iterator[None]:
        if self._running.total() >= MAX_ANSWERS or self._running[tenant] >= MAX_TENANT_ANSWERS:
            raise UnavailableError("too many workers fetch blocks from this one", RETRY_AFTER_S)
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    async def _answer(self, message: worker_pb2.FetchBlocksRequest, claims: PeerClaims, send: Send) -> None:
        domain, block_bytes = await self._ask(
            lambda engine: (engine.exchange.domain(claims.domain_tag), engine.exchange.block_bytes)
        )
        if domain is None or domain.tenant != claims.tenant or not block_bytes:
            return
        believed = self._believed(domain, claims)
        tokens = open_question(domain, claims.exchange, message.sealed_prompt)
        names = block_names(domain, tokens, message.first_block, self._block_size)
        if not names or len(tokens) % (self._block_size * TOKEN_BYTES):
            raise InvalidRequestError("first_block", "a question is for whole blocks, at least one")
        salt = secrets.token_bytes(RANDOM_BYTES)
        seal = answer_seal(domain, claims.exchange, salt, tokens)
        opening = worker_pb2.FetchOpening(salt=salt, block_bytes=block_bytes)
        await _send(send, worker_pb2.FetchBlocksResponse(opening=opening))
        at, first = 0, message.first_block
        async for batch, waited_s in self._batches(domain, tokens, first, max(1, BATCH_BYTES // block_bytes)):
            if not self._admits(believed):
                return
            named = names[at : at + len(batch)]
            at += len(batch)
            chunks = await asyncio.to_thread(_sealed, seal, named, batch)
            for chunk in chunks:
                message_chunk = worker_pb2.FetchChunk(data=chunk, waited_duration=_duration(waited_s))
                await _send(send, worker_pb2.FetchBlocksResponse(chunk=message_chunk))
                waited_s = 0.0

    def _believed(self, domain: Domain, claims: PeerClaims) -> RequestClaims:
        """The claims as those of a request."""
        return RequestClaims(
            domain=domain,
            request_id="",
            incarnation=self._incarnation,
            expires_unix_s=claims.expires_unix_s,
            fence_order=claims.fence_order,
            control_generation=claims.control_generation,
        )

    async def _batches(
        self, domain: Domain, tokens: PackedTokens, first: int, num_most: int
    ) -> AsyncIterator[tuple[tuple[bytearray, ...], float]]:
        """Blocks as they are there, and for how long they were waited for."""
        waited_since_s = self._clock.monotonic_s()
        while True:
            exported = await self._ask(_export(domain, tokens, first, num_most))
            if exported.blocks:
                yield exported.blocks, self._clock.monotonic_s() - waited_since_s
                first += len(exported.blocks)
                waited_since_s = self._clock.monotonic_s()
            elif exported.is_more_coming:
                await asyncio.sleep(FOLLOW_S)
            else:
                return

    async def _ask(self, function: Callable[[ExchangingEngine], _Result]) -> _Result:
        try:
            return await self._thread.call(function, WAIT_S)
        except TimeoutError:
            raise DeadlineError(f"the engine's step has been running for {WAIT_S:g} s") from None


def _export(domain: Domain, tokens: PackedTokens, first: int, num_most: int) -> Callable[[ExchangingEngine], Exported]:
    return lambda engine: engine.exchange.export(domain, tokens, first, num_most)


def _sealed(seal: BlockSeal, names: Sequence[BlockName], blocks: Sequence[bytearray]) -> list[bytes]:
    return list(sealed_chunks(seal, names, blocks))


async def _send(send: Send, message: worker_pb2.FetchBlocksResponse) -> None:
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await send(message)
    except TimeoutError:
        raise DeadlineError(f"the caller has read nothing for {WRITE_TIMEOUT_S:g} s") from None


def _duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
