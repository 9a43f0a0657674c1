"""Equal prompts at two routers at once: exact, and computed once in the cluster, however many come."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from cache_store.clock import SystemClock
from cache_store.tokens import pack, unpack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.router.registry_view import RegistryView
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    Tenant,
    eventually,
    router_settings,
    running,
    running_cluster,
    tokens_request,
)
from worker.config import NumBlocks
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.sampling import SamplingParams

BURST = 6
"""At each router."""

NUM_TOKENS = 801


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


def expected(prompt: list[int]) -> list[int]:
    info = digest_model()
    params = SamplingParams(0.0, 1.0, 0, 0, 4, 0, ())
    (sample,) = expected_output(info.geometry, info.vocab_size, pack(prompt), params, 1)
    return list(sample.token_ids)


def loads(view: RegistryView) -> set[tuple[str, int, int]] | None:
    """What a router knows of idle workers; None while one is busy."""
    known = {(each.worker_id, each.load.running_requests, each.load.recent_prefill_tokens) for each in view.records()}
    return None if any(running for _, running, _ in known) else known


async def test_a_burst_at_two_routers_is_computed_once(urls: RoleUrls, tmp_path: Path) -> None:
    slow = {"digest_token_s": 0.0005, "digest_step_s": 0.005, "pool": NumBlocks(2_048)}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_cluster(urls, tmp_path / "r0", [slow] * 4))
        other = await stack.enter_async_context(running(router_settings(urls, tmp_path / "r1"), SystemClock()))
        view = other._parts.view
        own = cluster.router._parts.view
        await eventually(lambda: len(view.records()) == 4)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(other.address))
        acme = Tenant("acme", cluster.acme.key, channel)
        for number in range(4):
            prompt = [number + 1, *range(100, 99 + NUM_TOKENS)]
            await eventually(lambda: (known := loads(own)) is not None and known == loads(view))
            answers = await asyncio.gather(
                *(tenant.generate(tokens_request(prompt, max_tokens=4)) for tenant in [cluster.acme, acme] * BURST)
            )
            for answer in answers:
                assert unpack(answer.completions[0].token_ids.packed) == expected(prompt)
            computed = sum(NUM_TOKENS - answer.usage.cached_tokens for answer in answers)
            assert computed <= NUM_TOKENS + 2 * BURST * 16, "it was computed more than once"
