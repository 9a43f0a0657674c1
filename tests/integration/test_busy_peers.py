"""Peers that are at work or full are no peers that are away; those that are away are so for who asked them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from stemcache.worker.v1 import worker_pb2

from cache_store.domain import Domain
from tests.support.memory_stores import MemoryStores
from tests.support.peer_calls import BLOCK_SIZE, HostilePeer, hostile_peer, opening, until
from tests.support.worker_host import WorkerClient, client_of, digest_config, digest_domain, running_workers
from worker import fetch_cost, rpc_fetch, rpc_peers
from worker.digest_runner import digest_model
from worker.host import WorkerHost

ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")
Node = tuple[WorkerHost, WorkerClient]


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    """Two workers; computing takes long enough for fetching to be worth it."""
    configs = [digest_config(f"worker-{number}", digest_token_s=0.0005) for number in range(2)]
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(running_workers(configs, MemoryStores().connect))
        yield [(host, await stack.enter_async_context(client_of(host))) for host in hosts]


async def stall(_: Any, write: Any) -> None:
    """Says that it is there, and nothing more."""
    await write(opening(digest_model().geometry.bytes_per_block))
    await asyncio.sleep(60)


async def spoil(_: Any, write: Any) -> None:
    """Sends something else than it was asked for."""
    await write(opening(1))


async def fetched(
    node: Node, domain: Domain, prompt: Iterable[int], num_blocks: int = 0, peer: HostilePeer | WorkerHost | None = None
) -> int:
    """Tokens of a request that came from another worker."""
    message = node[1].message(domain, list(prompt), max_tokens=2)
    if peer is not None:
        hint = worker_pb2.PeerHint(address=peer.address, incarnation=peer.incarnation, block_count=num_blocks)
        message.peer.CopyFrom(hint)
    tokens = 0
    async for response in node[1].call(message):
        tokens += response.started.cached_by_tier.peer_tokens
    return tokens


async def test_who_is_late_with_a_few_blocks_does_not_rest(nodes: list[Node]) -> None:
    asker = nodes[0]
    await fetched(asker, ACME, range(2_000, 2_200))  # its speed of computing is known from now on
    async with hostile_peer(stall) as peer:
        await fetched(asker, ACME, range(1_001, 1_060), 3, peer)
        await fetched(asker, ACME, range(1, 800), 49, peer)
        assert peer.num_asked == 2, "a small question has kept a large one away"


async def test_who_fails_one_tenant_rests_for_no_other_one(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_cost, "MIN_REST_S", 600.0)
    monkeypatch.setattr(fetch_cost, "MAX_REST_S", 600.0)
    asker = nodes[0]
    async with hostile_peer(spoil) as peer:
        await fetched(asker, ACME, range(1, 200), 12, peer)
        await fetched(asker, ACME, range(1_001, 1_200), 12, peer)
        assert peer.num_asked == 1, "it rests for who has seen it fail"
        await fetched(asker, GLOBEX, range(1, 200), 12, peer)
        assert peer.num_asked == 2


async def test_who_has_no_place_for_a_question_does_not_rest(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, holder = nodes
    for start in (1, 1_001):
        await fetched(holder, ACME, range(start, start + 399))
    with monkeypatch.context() as full:
        full.setattr(rpc_peers, "MAX_ANSWERS", 0)
        assert await fetched(asker, ACME, range(1, 400), 24, holder[0]) == 0
    assert await fetched(asker, ACME, range(1_001, 1_400), 24, holder[0]) == 24 * BLOCK_SIZE


async def test_a_channel_that_is_used_is_kept(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_fetch, "MAX_CHANNELS", 1)
    asker, holder = nodes
    await fetched(holder, ACME, range(1, 400))
    async with hostile_peer(stall) as peer:
        running = asyncio.create_task(fetched(asker, GLOBEX, range(1, 400), 24, peer))
        await until(lambda: peer.num_asked == 1)
        assert await fetched(asker, ACME, range(1, 400), 24, holder[0])
        assert peer.num_ended == 0, "the other one's answer has ended with its channel"
        await running
