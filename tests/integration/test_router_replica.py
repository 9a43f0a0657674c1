"""Where requests go by the router's copy of the index: bursts stay together, routers agree, and Redis may be away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2_grpc

from cache_store.clock import SystemClock
from services.cluster.valkey import EmbeddedValkey
from tests.support.outages import end
from tests.support.router_host import (
    Cluster,
    Tenant,
    eventually_async,
    router_settings,
    running,
    running_cluster,
    tokens_request,
    until_served,
)

PROMPT = list(range(100, 420))
WORKER = {"digest_step_s": 0.002, "digest_token_s": 0.002}
"""The prompt takes 0.6 s: no worker can have told of it when the burst comes."""


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A server that the test may end."""
    with EmbeddedValkey.start(tmp_path / "v") as server:
        yield server


@pytest.fixture
async def cluster(own_valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(own_valkey.urls, tmp_path / "r", (WORKER,) * 3) as made:
        yield made


async def matched(cluster: Cluster, tenant: Tenant, request_id: str) -> dict[str, int]:
    """Tokens that the router counted on, by worker."""
    record = await cluster.record(tenant, request_id)
    return {term.worker_id: term.matched_tokens for term in record.terms}


async def test_a_burst_of_equal_prompts_goes_to_one_worker_and_is_computed_once(cluster: Cluster) -> None:
    answers = await asyncio.gather(*(cluster.acme.generate(tokens_request(PROMPT)) for _ in range(12)))
    assert len({answer.route.worker_id for answer in answers}) == 1
    assert sorted(answer.usage.cached_tokens for answer in answers)[:2] == [0, 319]


async def test_a_burst_counts_for_its_own_tenant_only(cluster: Cluster) -> None:
    own = [asyncio.create_task(cluster.acme.generate(tokens_request(PROMPT, request_id=f"a{at}"))) for at in range(2)]
    other = asyncio.create_task(cluster.globex.generate(tokens_request(PROMPT, request_id="g")))
    answers = await asyncio.gather(*own, other)
    counted = [max((await matched(cluster, cluster.acme, f"a{at}")).values()) for at in range(2)]
    assert sorted(counted) == [0, 319]
    assert not any((await matched(cluster, cluster.globex, "g")).values())
    assert answers[-1].usage.cached_tokens == 0


async def test_another_router_soon_knows_what_came(
    cluster: Cluster, own_valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    async with (
        running(router_settings(own_valkey.urls, tmp_path / "second"), SystemClock()) as router,
        grpc.aio.insecure_channel(router.address) as channel,
        grpc.aio.insecure_channel(router.admin_address) as admin,
    ):
        acme = Tenant("acme", cluster.acme.key, channel)
        await until_served(acme, 3)
        there = Cluster(router, [], acme, acme, admin_pb2_grpc.ClusterServiceStub(admin), None, channel)
        await acme.generate(tokens_request(PROMPT[:32], max_tokens=1))  # it follows the domain from now on
        answer = await cluster.acme.generate(tokens_request(PROMPT))
        number = 0

        async def agrees() -> bool:
            nonlocal number
            number += 1
            await acme.generate(tokens_request(PROMPT, request_id=f"r{number}", max_tokens=1))
            return (await matched(there, acme, f"r{number}"))[answer.route.worker_id] == 319

        await eventually_async(agrees)


async def test_without_redis_requests_still_go_where_their_prefix_was(
    cluster: Cluster, own_valkey: EmbeddedValkey
) -> None:
    prompts = [[at, *PROMPT] for at in range(1, 7)]
    homes = [(await cluster.acme.generate(tokens_request(prompt))).route.worker_id for prompt in prompts]

    async def followed() -> bool:
        """The copy answers by itself once the domain is loaded."""
        await cluster.acme.generate(tokens_request(prompts[0], max_tokens=1))
        return cluster.router.index.num_followed == 3 and cluster.router.index.num_digests >= 6 * 20

    await eventually_async(followed)
    await end(own_valkey)
    await asyncio.sleep(1.2)
    answers = [await cluster.acme.generate(tokens_request(prompt)) for prompt in prompts]
    assert all(answer.route.degraded for answer in answers)
    assert [answer.route.worker_id for answer in answers] == homes
    assert Counter(answer.usage.cached_tokens for answer in answers) == {320: 6}
