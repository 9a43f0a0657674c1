"""The operator reads where blocks lie and which requests came last; nobody else does, and nothing else is told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2
from stemcache.worker.v1 import block_map_pb2, worker_pb2, worker_pb2_grpc

from cache_store.drain_token import sign_drain
from cache_store.look_token import sign_look
from cache_store.registry import PROTOCOL_VERSION
from cache_store.tokens import pack
from services.cluster.valkey import EmbeddedValkey
from services.tenants.master_key import cluster_key
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_METADATA, MASTER, Cluster, running_cluster, tokens_request

PROMPT = list(range(100, 180))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(server_named(request, "valkey").urls, tmp_path) as made:
        yield made


async def block_map(cluster: Cluster, **fields: Any) -> block_map_pb2.BlockMap:
    request = admin_pb2.GetBlockMapRequest(worker_id="worker-0", **fields)
    response = await cluster.cluster_admin.GetBlockMap(request, timeout=10.0, metadata=ADMIN_METADATA)
    return response.block_map


async def test_a_running_request_and_a_cached_prefix_are_shown(cluster: Cluster) -> None:
    await cluster.globex.generate(tokens_request(PROMPT, max_tokens=2))
    call = cluster.acme.stream(tokens_request(PROMPT, max_tokens=4_000, request_id="long"))
    await call.read()
    shown = await block_map(cluster, request_id="long")
    (sequence,) = shown.sequences
    assert (sequence.request_id, shown.tenants[sequence.tenant]) == ("long", "acme")
    assert sequence.state == block_map_pb2.SequenceBlocks.STATE_DECODE
    (line,) = shown.lines
    assert shown.tenants[line.tenant] == "globex"
    assert len(line.table.numbers) == 5
    assert {shown.states[number] for number in line.table.numbers} == {1}
    assert not set(line.table.numbers) & set(sequence.table.numbers)
    assert pack(PROMPT[:2]) not in shown.SerializeToString()
    await cluster.acme.cancel("long")
    call.cancel()


async def test_the_last_requests_are_listed_newest_first(cluster: Cluster) -> None:
    for number in range(3):
        await cluster.acme.generate(tokens_request(PROMPT, max_tokens=2, request_id=f"r{number}"))
    await cluster.globex.generate(tokens_request(PROMPT, max_tokens=2, request_id="other"))

    async def ids(**fields: Any) -> list[str]:
        request = admin_pb2.ListRequestRecordsRequest(**fields)
        response = await cluster.cluster_admin.ListRequestRecords(request, timeout=10.0, metadata=ADMIN_METADATA)
        return [each.request_id for each in response.records]

    assert await ids() == ["other", "r2", "r1", "r0"]
    assert await ids(max_records=2) == ["other", "r2"]
    assert await ids(tenant="acme") == ["r2", "r1", "r0"]


async def test_a_tenants_key_reads_neither(cluster: Cluster) -> None:
    for method, request in (
        (cluster.cluster_admin.GetBlockMap, admin_pb2.GetBlockMapRequest(worker_id="worker-0")),
        (cluster.cluster_admin.ListRequestRecords, admin_pb2.ListRequestRecordsRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await method(request, timeout=10.0, metadata=cluster.acme.metadata)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_worker_shows_its_blocks_under_a_look_token_only(cluster: Cluster) -> None:
    key, incarnation, soon_s = cluster_key(MASTER), cluster.workers[0].incarnation, time.time() + 30
    async with grpc.aio.insecure_channel(cluster.workers[0].address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        for token in (
            b"",
            sign_look(bytes(32), incarnation, soon_s),
            sign_look(key, incarnation, time.time() - 300),
            sign_look(key, type(incarnation)("0" * 32), soon_s),
            sign_drain(key, incarnation, soon_s),
        ):
            request = worker_pb2.ReadBlockMapRequest(protocol_version=PROTOCOL_VERSION, look_token=token)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.ReadBlockMap(request, timeout=10.0)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        request.look_token = sign_look(key, incarnation, soon_s)
        assert (await stub.ReadBlockMap(request, timeout=10.0)).block_map.num_blocks == 512


async def test_an_unknown_worker_is_told(cluster: Cluster) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await cluster.cluster_admin.GetBlockMap(
            admin_pb2.GetBlockMapRequest(worker_id="nobody"), timeout=10.0, metadata=ADMIN_METADATA
        )
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
