"""Asks a worker for blocks as another worker does, and a peer that answers as it likes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.domain import Domain
from cache_store.fence import FenceOrder
from cache_store.index import Incarnation
from cache_store.peer_seal import Exchange, answer_seal, block_names, seal_question
from cache_store.peer_token import PeerClaims, sign_peer
from cache_store.registry import PROTOCOL_VERSION
from cache_store.tokens import PackedTokens, pack
from tests.support.worker_host import CLUSTER_KEY, FIRST_ORDER
from worker.peer_stream import BlockAssembler

ASKER = Incarnation("a" * 32)
BLOCK_SIZE = 16


class Asker:
    """Asks one worker."""

    def __init__(self, stub: Any, holder: Incarnation, cluster_key: bytes = CLUSTER_KEY) -> None:
        self._stub = stub
        self._holder = holder
        self._cluster_key = cluster_key

    def question(
        self,
        domain: Domain,
        prompt: Iterable[int],
        *,
        first_block: int = 0,
        lifetime_s: float = 10.0,
        holder: Incarnation | None = None,
        fence_order: FenceOrder = FIRST_ORDER,
        asked_as: Domain | None = None,
    ) -> tuple[worker_pb2.FetchBlocksRequest, Exchange, PackedTokens]:
        """A valid one; `asked_as`: the domain that the token names, where it is another one."""
        tokens = pack(prompt)
        tokens = PackedTokens(tokens[: len(tokens) // (4 * BLOCK_SIZE) * 4 * BLOCK_SIZE])
        exchange = Exchange(holder or self._holder, ASKER, secrets.token_bytes(32), self._cluster_key)
        named = asked_as or domain
        claims = PeerClaims(exchange, named.tenant, named.tag, time.time() + lifetime_s, fence_order, 1)
        request = worker_pb2.FetchBlocksRequest(
            protocol_version=PROTOCOL_VERSION,
            peer_token=sign_peer(self._cluster_key, claims),
            sealed_prompt=seal_question(domain, exchange, tokens),
            first_block=first_block,
        )
        return request, exchange, tokens

    def send(self, request: worker_pb2.FetchBlocksRequest) -> Any:
        """The raw call."""
        return self._stub.FetchBlocks(request, timeout=20)

    async def blocks(self, domain: Domain, prompt: Iterable[int], **options: Any) -> list[bytearray]:
        """What a worker that knows the domain can open of the answer."""
        request, exchange, tokens = self.question(domain, prompt, **options)
        assembler: BlockAssembler | None = None
        async for message in self.send(request):
            if message.HasField("opening"):
                names = block_names(domain, tokens, request.first_block, BLOCK_SIZE)
                seal = answer_seal(domain, exchange, message.opening.salt, tokens)
                assembler = BlockAssembler(seal, names, message.opening.block_bytes)
            else:
                assert assembler is not None
                assembler.feed(message.chunk.data)
        return [] if assembler is None else assembler.blocks


Answer = Callable[[worker_pb2.FetchBlocksRequest, Callable[[Any], Awaitable[None]]], Awaitable[None]]


class HostilePeer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers questions for blocks as it is told."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.address = ""
        self.incarnation = Incarnation("b" * 32)
        self.num_asked = self.num_ended = 0

    async def FetchBlocks(self, request: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        self.num_asked += 1
        try:
            await self._answer(request, context.write)
        finally:
            self.num_ended += 1

    def hint(self, num_blocks: int) -> worker_pb2.PeerHint:
        return worker_pb2.PeerHint(address=self.address, incarnation=self.incarnation, block_count=num_blocks)


@asynccontextmanager
async def hostile_peer(answer: Answer) -> AsyncIterator[HostilePeer]:
    """Serves until the block ends."""
    peer = HostilePeer(answer)
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(peer, server)
    peer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield peer
    finally:
        await server.stop(0)


def opening(block_bytes: int, salt: bytes = b"s" * 32) -> worker_pb2.FetchBlocksResponse:
    return worker_pb2.FetchBlocksResponse(opening=worker_pb2.FetchOpening(salt=salt, block_bytes=block_bytes))


def chunk(data: bytes) -> worker_pb2.FetchBlocksResponse:
    return worker_pb2.FetchBlocksResponse(chunk=worker_pb2.FetchChunk(data=data))


async def until(condition: Callable[[], bool]) -> None:
    """Waits until it is true."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
