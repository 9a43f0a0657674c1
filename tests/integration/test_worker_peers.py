"""Workers that fetch blocks from each other over real gRPC: what comes is compared, bounded, and ends when it must."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import SystemClock
from cache_store.domain import Domain
from cache_store.errors import VersionError
from cache_store.fence import FenceNotice
from cache_store.fence_document import sign_notice
from cache_store.index import Incarnation
from cache_store.peer_seal import answer_seal, block_names, open_question
from cache_store.peer_token import verify_peer
from cache_store.registry import PROTOCOL_VERSION
from cache_store.tokens import pack, unpack
from cache_store.usage import CachedTokens, PeerCounts
from tests.support.fences import fenced_domain, make_fence, make_table
from tests.support.memory_stores import MemoryStores
from tests.support.peer_calls import BLOCK_SIZE, Asker, chunk, hostile_peer, opening, until
from tests.support.router_host import eventually_async
from tests.support.worker_host import (
    CLUSTER_KEY,
    DIGEST_FORMAT,
    Execution,
    WorkerClient,
    client_of,
    digest_config,
    digest_domain,
    running_workers,
)
from worker import rpc_peers, rpc_purge
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.host import WorkerHost
from worker.peer_stream import sealed_chunks
from worker.sampling import SamplingParams

PROMPT = range(1, 1_002)
"""62 full blocks of 16 tokens, and nine tokens."""
NUM_BLOCKS = 62
ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")
BLOCK_BYTES = digest_model().geometry.bytes_per_block


@dataclass
class Node:
    """A worker and who calls it."""

    host: WorkerHost
    client: WorkerClient

    @property
    def asker(self) -> Asker:
        return Asker(self.client.stub, self.host.incarnation)

    def hint(self, num_blocks: int = NUM_BLOCKS) -> worker_pb2.PeerHint:
        return worker_pb2.PeerHint(address=self.host.address, incarnation=self.host.incarnation, block_count=num_blocks)

    async def run(
        self, domain: Domain, prompt: Iterable[int] = PROMPT, peer: worker_pb2.PeerHint | None = None
    ) -> tuple[CachedTokens, Execution]:
        """A request, with the tokens that it should have; what was reused for it."""
        message = self.client.message(domain, list(prompt), max_tokens=4)
        if peer is not None:
            message.peer.CopyFrom(peer)
        execution, cached = Execution(), CachedTokens()
        async for response in self.client.call(message):
            if response.HasField("started"):
                tiers = response.started.cached_by_tier
                cached = CachedTokens(tiers.device_tokens, tiers.host_tokens, tiers.disk_tokens, tiers.peer_tokens)
            elif response.HasField("tokens"):
                execution.tokens[0] += unpack(response.tokens.packed)
        assert tuple(execution.tokens[0]) == expected(list(prompt)), "other tokens than without a cache"
        return cached, execution

    async def counts(self) -> PeerCounts:
        return await self.host.thread.call(lambda engine: engine.exchange.counts, 20)

    async def purge(self, tenant: str, epoch_number: int) -> None:
        fence = make_fence(tenant, epoch_number)
        notice = sign_notice(CLUSTER_KEY, FenceNotice(fence.tenant, fence, 2))
        await self.client.stub.Purge(
            worker_pb2.PurgeRequest(protocol_version=PROTOCOL_VERSION, fence=notice), timeout=20
        )


def expected(prompt: list[int]) -> tuple[int, ...]:
    info = digest_model()
    params = SamplingParams(0.0, 1.0, 0, 0, 4, 0, ())
    (sample,) = expected_output(info.geometry, info.vocab_size, pack(prompt), params, 1)
    return sample.token_ids


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    """Three workers; computing takes long enough for fetching to be worth it."""
    configs = [digest_config(f"worker-{number}", digest_token_s=0.0005) for number in range(3)]
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(running_workers(configs, MemoryStores().connect))
        yield [Node(host, await stack.enter_async_context(client_of(host))) for host in hosts]


async def test_a_prefix_is_fetched_and_not_computed(nodes: list[Node]) -> None:
    holder, asker, _ = nodes
    await holder.run(ACME)
    cached, _ = await asker.run(ACME, peer=holder.hint())
    assert cached == CachedTokens(0, 0, 0, NUM_BLOCKS * BLOCK_SIZE)
    assert (await asker.run(ACME))[0] == CachedTokens(NUM_BLOCKS * BLOCK_SIZE)
    fetched, served = await asker.counts(), await holder.counts()
    assert fetched.fetched_blocks == served.served_blocks == NUM_BLOCKS
    assert fetched.fetched_bytes == served.served_bytes == NUM_BLOCKS * BLOCK_BYTES


async def test_another_tenant_gets_nothing_and_the_same_one_does(nodes: list[Node]) -> None:
    holder, asker, third = nodes
    await holder.run(ACME)
    assert (await asker.run(GLOBEX, peer=holder.hint()))[0] == CachedTokens()
    assert (await third.run(ACME, peer=holder.hint()))[0].peer == NUM_BLOCKS * BLOCK_SIZE
    assert await holder.asker.blocks(GLOBEX, PROMPT) == []
    assert len(await holder.asker.blocks(ACME, PROMPT)) == NUM_BLOCKS


@pytest.mark.parametrize("other", [digest_domain("acme", "p"), digest_domain("acme", epoch="e2")], ids=["p", "e2"])
async def test_partitions_and_epochs_are_apart(nodes: list[Node], other: Domain) -> None:
    holder, asker, _ = nodes
    await holder.run(ACME)
    assert (await asker.run(other, peer=holder.hint()))[0] == CachedTokens()
    assert await holder.asker.blocks(other, PROMPT) == []
    assert len(await holder.asker.blocks(ACME, PROMPT)) == NUM_BLOCKS


async def test_bytes_in_clear_tell_nothing(nodes: list[Node]) -> None:
    """Neither the question nor the answer has tokens, keys and values, or the domain's root."""
    holder = nodes[0]
    await holder.run(ACME)
    request, _, tokens = holder.asker.question(ACME, PROMPT)
    wire = request.SerializeToString()
    async for message in holder.asker.send(request):
        wire += message.SerializeToString()
    records = await holder.host.thread.call(lambda engine: engine.exchange.export(ACME, tokens, 0, 1), 20)
    for secret in (ACME.root, tokens[:32], bytes(records.blocks[0][:24])):
        assert secret not in wire


async def test_blocks_begin_where_they_are_asked_for(nodes: list[Node]) -> None:
    holder = nodes[0]
    await holder.run(ACME)
    assert len(await holder.asker.blocks(ACME, PROMPT, first_block=60)) == 2
    assert len(await holder.asker.blocks(ACME, range(1, 33), first_block=0)) == 2
    assert await holder.asker.blocks(ACME, [9, *range(2, 33)]) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"lifetime_s": -1.0}, grpc.StatusCode.UNAUTHENTICATED),
        ({"lifetime_s": 3_600.0}, grpc.StatusCode.UNAUTHENTICATED),
        ({"holder": Incarnation("f" * 32)}, grpc.StatusCode.UNAUTHENTICATED),
        ({"first_block": 62}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"first_block": 2**32 - 1}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["expired", "too long", "another life", "behind the end", "far behind"],
)
async def test_questions_that_do_not_fit_are_refused(
    nodes: list[Node], changes: dict[str, Any], code: grpc.StatusCode
) -> None:
    holder = nodes[0]
    await holder.run(ACME)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await holder.asker.blocks(ACME, PROMPT, **changes)
    assert caught.value.code() is code
    assert (await holder.counts()).served_blocks == 0


async def test_strangers_are_refused(nodes: list[Node]) -> None:
    """Without the cluster's key; with a request's token in place of a peer's; with a question under another root."""
    holder = nodes[0]
    await holder.run(ACME)
    stranger = Asker(holder.client.stub, holder.host.incarnation, b"x" * 32)
    with pytest.raises(grpc.aio.AioRpcError, match="MAC") as caught:
        await stranger.blocks(ACME, PROMPT)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    request, _, _ = holder.asker.question(ACME, PROMPT)
    request.peer_token = holder.client.token(ACME)
    with pytest.raises(grpc.aio.AioRpcError, match="MAC"):
        [message async for message in holder.asker.send(request)]
    with pytest.raises(grpc.aio.AioRpcError):
        await holder.asker.blocks(GLOBEX, PROMPT, asked_as=ACME)
    other = holder.asker.question(ACME, PROMPT)[0]
    other.protocol_version = 1
    with pytest.raises(grpc.aio.AioRpcError, match=VersionError("", 1, PROTOCOL_VERSION).args[0][-20:]):
        [message async for message in holder.asker.send(other)]
    assert (await holder.counts()).served_blocks == 0


async def test_purged_epochs_are_refused(nodes: list[Node]) -> None:
    holder, asker, third = nodes
    old = fenced_domain(make_fence("acme", 0), kv_format=DIGEST_FORMAT)
    new = fenced_domain(make_fence("acme", 1), kv_format=DIGEST_FORMAT)
    await holder.run(old)
    assert (await third.run(old, peer=holder.hint()))[0].peer, "nothing is fetched before the purge either"
    await holder.purge("acme", 1)
    assert await holder.asker.blocks(old, PROMPT) == []
    assert (await asker.run(old, peer=holder.hint()))[0] == CachedTokens()
    assert (await asker.run(new, peer=third.hint()))[0] == CachedTokens()


async def test_who_may_have_missed_a_purge_gives_nothing(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read what is published for the last time too long ago."""
    holder = nodes[0]
    domain = fenced_domain(make_fence("acme", 0), kv_format=DIGEST_FORMAT)
    await holder.run(domain)
    purges = holder.host._servicer.purges
    await purges.take(make_table(5, make_fence("acme", 0)))
    purges.note_read()
    assert len(await holder.asker.blocks(domain, PROMPT)) == NUM_BLOCKS
    monkeypatch.setattr(rpc_purge, "MAX_READ_AGE_S", -1.0)
    assert await holder.asker.blocks(domain, PROMPT) == []


async def test_who_has_heard_of_a_purge_fetches_nothing_of_it(nodes: list[Node]) -> None:
    holder, asker, _ = nodes
    old = fenced_domain(make_fence("acme", 0), kv_format=DIGEST_FORMAT)
    await holder.run(old)
    await asker.purge("acme", 1)
    assert (await asker.run(old, peer=holder.hint()))[0] == CachedTokens()
    assert (await asker.counts()).fetches == 0


async def test_what_is_being_computed_is_followed(nodes: list[Node]) -> None:
    """Two equal prompts at two workers at once: one computes, the other gets the blocks as they are there."""
    holder, asker, _ = nodes
    first = asyncio.create_task(holder.run(ACME, range(1, 2_002)))
    await until(lambda: holder.host.thread.num_open == 1)
    cached, _ = await asker.run(ACME, range(1, 2_002), peer=holder.hint(125))
    assert cached.peer > 1_000
    await first


async def test_a_peer_that_is_away_costs_a_miss(nodes: list[Node]) -> None:
    asker = nodes[0]
    gone = worker_pb2.PeerHint(address="127.0.0.1:9", incarnation="c" * 32, block_count=62)
    assert (await asker.run(ACME, peer=gone))[0] == CachedTokens()
    assert (await asker.counts()).failed_fetches == 1


async def test_its_own_hint_is_none(nodes: list[Node]) -> None:
    assert (await nodes[0].run(ACME, peer=nodes[0].hint()))[0] == CachedTokens()
    assert (await nodes[0].counts()).fetches == 0


async def answers(kind: str, request: worker_pb2.FetchBlocksRequest, write: Any, holder: Incarnation) -> None:
    """What a hostile peer that even knows the domain's root sends."""
    claims = verify_peer(CLUSTER_KEY, request.peer_token, holder, SystemClock().unix_s())
    tokens = open_question(ACME, claims.exchange, request.sealed_prompt)
    salt, block = b"s" * 32, bytearray(BLOCK_BYTES)
    keys = claims.exchange
    names = block_names(ACME, tokens, request.first_block, BLOCK_SIZE)
    if kind == "wrong tokens":
        wrong = block_names(ACME, bytes(4) + tokens[4:], request.first_block, BLOCK_SIZE)  # type: ignore[arg-type]
        seal, names = answer_seal(ACME, keys, salt, tokens), wrong
    elif kind == "wrong order":
        seal, names = answer_seal(ACME, keys, salt, tokens), names[::-1]
    elif kind == "wrong key":
        seal = answer_seal(GLOBEX, keys, salt, tokens)
    elif kind == "replay":
        seal = answer_seal(ACME, replace(keys, nonce=bytes(32)), salt, tokens)
    else:
        seal = answer_seal(ACME, keys, salt, tokens)
    await write(opening(BLOCK_BYTES + (kind == "size"), salt))
    if kind == "stall":
        await asyncio.sleep(60)
    data = b"".join(sealed_chunks(seal, names, [block] * len(names)))
    if kind == "truncated":
        await write(chunk(data[: len(data) // len(names) // 2]))
        return
    if kind == "flood":
        for _ in range(10_000):
            await write(chunk(bytes(400_000)))
    if kind == "opened twice":
        await write(opening(BLOCK_BYTES, salt))
    await write(chunk(data))


@pytest.mark.parametrize(
    "kind",
    [
        "wrong tokens",
        "wrong order",
        "wrong key",
        "replay",
        "size",
        "truncated",
        "flood",
        "stall",
        "opened twice",
    ],
)
async def test_hostile_peers_cost_a_miss(nodes: list[Node], kind: str) -> None:
    asker = nodes[0]
    async with hostile_peer(lambda request, write: answers(kind, request, write, Incarnation("b" * 32))) as peer:
        cached, _ = await asker.run(ACME, range(1, 400), peer=peer.hint(24))
        assert cached == CachedTokens()
        counts = await asker.counts()
        assert (counts.fetches, counts.failed_fetches, counts.fetched_blocks) == (1, 1, 0)
        await until(lambda: peer.num_ended == peer.num_asked)
    assert (await asker.run(ACME, range(1, 400)))[0].total, "what was computed is not cached"


async def test_a_request_that_is_cancelled_ends_its_fetch(nodes: list[Node]) -> None:
    asker = nodes[0]
    async with hostile_peer(lambda request, write: answers("stall", request, write, Incarnation("b" * 32))) as peer:
        message = asker.client.message(ACME, list(PROMPT))
        message.peer.CopyFrom(peer.hint(62))
        call = asker.client.call(message)
        await until(lambda: peer.num_asked == 1)
        call.cancel()
        await until(lambda: peer.num_ended == 1)
        await until(lambda: asker.host.thread.num_open == 0)
    assert (await asker.run(ACME, range(5, 40)))[0] == CachedTokens()


async def holds_nothing(node: Node) -> bool:
    return await node.host.thread.call(lambda engine: engine.num_held_blocks, 20) == 0


async def test_a_storm_of_cancels_during_fetches_leaves_nothing(nodes: list[Node]) -> None:
    """At random moments of the question, the answer, the way to the device and after it."""
    holder, asker, _ = nodes
    prompts = [list(range(start, start + 400)) for start in range(1, 4_001, 400)]
    for prompt in prompts:
        await holder.run(ACME, prompt)
    rng = random.Random(1)

    async def fetch(prompt: list[int]) -> None:
        message = asker.client.message(ACME, [*prompt, rng.randrange(30_000)], max_tokens=2)
        message.peer.CopyFrom(holder.hint(25))
        call = asker.client.call(message)
        await asyncio.sleep(rng.random() * 0.1)
        call.cancel()

    for _ in range(20):
        await asyncio.gather(*(fetch(rng.choice(prompts)) for _ in range(10)))
        if rng.random() < 0.5:
            await asker.host.thread.call(lambda engine: engine.purge({ACME.tenant: None}), 20)
    for node in (holder, asker):
        await until(lambda node=node: node.host.thread.num_open == 0)
        await eventually_async(lambda node=node: holds_nothing(node))  # answers to others are no open requests
        await node.host.thread.call(lambda engine: engine.check_invariants(), 20)
    assert (await asker.counts()).fetches > 0
    cached, _ = await asker.run(ACME, prompts[0], peer=holder.hint(25))
    assert cached.total >= 384, "fetching works no more"


async def test_answers_at_once_are_bounded(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """And one tenant's leave a place for another's."""
    monkeypatch.setattr(rpc_peers, "MAX_TENANT_ANSWERS", 1)
    monkeypatch.setattr(rpc_peers, "MAX_ANSWERS", 2)
    holder = nodes[0]
    await holder.run(GLOBEX)
    running = asyncio.create_task(holder.run(ACME, range(1, 4_000)))
    await until(lambda: holder.host.thread.num_open == 1)
    following = asyncio.create_task(holder.asker.blocks(ACME, range(1, 4_000)))
    await asyncio.sleep(0.1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await holder.asker.blocks(ACME, PROMPT)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(await holder.asker.blocks(GLOBEX, PROMPT)) == NUM_BLOCKS
    following.cancel()
    await running
    await asyncio.wait((following,))
    assert len(await holder.asker.blocks(ACME, PROMPT)) == NUM_BLOCKS


async def test_a_caller_that_reads_nothing_is_given_up(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_peers, "WRITE_TIMEOUT_S", 0.05)

    async def never(_: Any) -> None:
        await asyncio.sleep(60)

    holder = nodes[0]
    await holder.run(ACME)
    servicer = holder.host._servicer
    request, _, _ = holder.asker.question(ACME, PROMPT)
    with pytest.raises(Exception, match="has read nothing"):
        await servicer._peers.answer(request, never)
    assert len(await holder.asker.blocks(ACME, PROMPT)) == NUM_BLOCKS
