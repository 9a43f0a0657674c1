"""A strict tenant over real workers: where its requests go and what hits, beside a tenant that floods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest
from stemcache.admin.v1 import admin_pb2

from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_METADATA, Cluster, Tenant, detail_of, running_cluster, tokens_request
from worker.config import NumBlocks

SESSIONS = [f"session {at}" for at in range(12)]
NUM_BLOCKS = 400


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    worker = {"digest_step_s": 0.002, "pool": NumBlocks(NUM_BLOCKS)}
    async with running_cluster(urls, tmp_path, (worker, worker, worker)) as made:
        await set_share(made, "acme", minimum=0.5, maximum=0.5)
        yield made


async def set_share(cluster: Cluster, tenant: str, minimum: float, maximum: float) -> None:
    share = admin_pb2.TierShare(tier="device", min=minimum, max=maximum)
    request = admin_pb2.SetTenantQuotaRequest(tenant=tenant, tiers=[share])
    await cluster.tenant_admin.SetTenantQuota(request, timeout=10.0, metadata=ADMIN_METADATA)
    await cluster.quotas_are_in_force()


async def turn(cluster: Cluster, session: str, length: int) -> tuple[str, int]:
    """One turn of a session of the strict tenant: the worker, and the tokens that were cached."""
    start = 1_000 * (1 + SESSIONS.index(session))
    prompt = range(start, start + length)
    answer = await cluster.acme.generate(tokens_request(prompt, session_id=session))
    return answer.route.worker_id, answer.usage.cached_tokens


async def flood(tenant: Tenant) -> None:
    """Long prompts that never come again, as fast as they are answered."""
    number = 0
    while True:
        number += 1
        await tenant.generate(tokens_request([number, *range(20_000, 20_800)], max_tokens=2))


async def test_nothing_that_others_do_changes_where_it_goes_and_what_hits(cluster: Cluster) -> None:
    """Eleven of the twelve sessions would fit into the tenant's part of one worker."""
    alone = [await turn(cluster, session, length) for length in (64, 128) for session in SESSIONS]
    assert len({worker_id for worker_id, _ in alone}) > 1, "sessions are spread"
    assert [worker_id for worker_id, _ in alone[12:]] == [worker_id for worker_id, _ in alone[:12]]
    assert all(cached >= 64 - 16 for _, cached in alone[12:])

    floods = [asyncio.create_task(flood(cluster.globex)) for _ in range(6)]
    await asyncio.sleep(0.5)
    beside = [await turn(cluster, session, length) for length in (192, 256) for session in SESSIONS]
    for task in floods:
        task.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    assert [worker_id for worker_id, _ in beside] == [worker_id for worker_id, _ in alone]
    assert all(cached >= 128 - 16 for _, cached in beside[:12])
    assert all(cached >= 192 - 16 for _, cached in beside[12:])


async def test_the_record_tells_the_rule_and_the_terms_of_all(cluster: Cluster) -> None:
    affinity, cost, tie = admin_pb2.ROUTE_RULE_AFFINITY, admin_pb2.ROUTE_RULE_COST, admin_pb2.ROUTE_RULE_TIE
    for tenant, rules in ((cluster.acme, {affinity}), (cluster.globex, {cost, tie})):
        answer = await tenant.generate(tokens_request(range(50, 150), request_id="r"))
        record = await cluster.record(tenant, "r")
        assert record.route_rule in rules
        assert record.terms[0].worker_id == answer.route.worker_id
        assert len(record.terms) == 3


async def test_what_can_never_fit_into_its_part_is_refused_with_its_own_numbers(cluster: Cluster) -> None:
    prompt = range(50, 50 + 16 * NUM_BLOCKS // 2 + 1)
    told = await refused(cluster.acme.generate(tokens_request(prompt, max_tokens=1)))
    assert (await cluster.globex.generate(tokens_request(range(50, 3_000), max_tokens=1))).usage.completion_tokens == 1
    again = await refused(cluster.acme.generate(tokens_request(prompt, max_tokens=1)))
    assert told == again
    assert f"your part of a worker's cache is {8 * NUM_BLOCKS}" in told
    assert "globex" not in told
    # What a strict tenant keeps is nobody else's: the others' part is smaller by it.
    theirs = await refused(cluster.globex.generate(tokens_request(prompt, max_tokens=1)))
    assert theirs == told


async def refused(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert detail_of(error.value, BadRequest).field_violations[0].field == "prompt"
    return error.value.details() or ""


async def test_a_worker_that_is_lost_is_followed_by_the_next_and_gives_nothing_else_away(cluster: Cluster) -> None:
    before = {session: (await turn(cluster, session, 160))[0] for session in SESSIONS}
    gone = before[SESSIONS[0]]
    lost = cluster.workers.pop(int(gone.removeprefix("worker-")))
    await lost.stop()
    after = {session: (await turn(cluster, session, 160))[0] for session in SESSIONS}
    moved = {session for session in SESSIONS if before[session] != after[session]}
    assert moved == {session for session in SESSIONS if before[session] == gone}


async def test_a_worker_that_drains_is_followed_by_the_next_without_an_error(cluster: Cluster) -> None:
    before = {session: (await turn(cluster, session, 160))[0] for session in SESSIONS}
    gone = before[SESSIONS[0]]
    drain = asyncio.create_task(cluster.workers[int(gone.removeprefix("worker-"))].drain(5))
    turns = await asyncio.gather(*(turn(cluster, session, 160) for session in SESSIONS))
    after = {session: worker_id for session, (worker_id, _) in zip(SESSIONS, turns, strict=True)}
    await drain
    moved = {session for session in SESSIONS if before[session] != after[session]}
    assert moved == {session for session in SESSIONS if before[session] == gone}


async def test_a_worker_that_stops_is_followed_by_the_next_without_an_error(cluster: Cluster) -> None:
    """Also where the request is there and has no token yet: that the worker goes is nothing that others have done."""
    call = asyncio.create_task(cluster.acme.generate(tokens_request(range(50, 50 + 2_000), max_tokens=1)))
    while not (at := [worker for worker in cluster.workers if worker.thread.num_open]):
        await asyncio.sleep(0.001)
    cluster.workers.remove(at[0])
    await at[0].stop()
    answer = await call
    assert answer.usage.completion_tokens == 1
    assert answer.route.worker_id != at[0].record().worker_id
