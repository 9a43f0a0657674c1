"""A worker that leaves: what it has goes to the others, what it runs ends or goes on there, nobody starts cold."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from random import Random

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.policies.choice import PolicyKind
from cache_store.tokens import pack, unpack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from tests.support.prefix_calls import matched
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    Cluster,
    Tenant,
    eventually,
    eventually_async,
    running_cluster,
    tokens_request,
)
from worker.config import NumBlocks
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.sampling import SamplingParams

pytestmark = pytest.mark.alone  # it waits for what is measured while it runs

SLOW = {"digest_token_s": 0.0002, "digest_step_s": 0.002, "pool": NumBlocks(2_048)}
HIT_RATE_KEPT = 0.95
"""Of before the drain."""


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    """What the model says without a cache."""
    info = digest_model()
    params = SamplingParams(0.0, 1.0, 0, 0, num_tokens, 0, ())
    (sample,) = expected_output(info.geometry, info.vocab_size, pack(prompt), params, 1)
    return list(sample.token_ids)


async def drain(cluster: Cluster, worker_id: str, grace_s: float = 10.0) -> admin_pb2.DrainWorkerResponse:
    grace = Duration()
    grace.FromMilliseconds(round(grace_s * 1000))
    request = admin_pb2.DrainWorkerRequest(worker_id=worker_id, grace_duration=grace)
    response: admin_pb2.DrainWorkerResponse = await cluster.cluster_admin.DrainWorker(
        request, timeout=120, metadata=ADMIN_METADATA
    )
    return response


class Chats:
    """Conversations of several tenants that go on turn by turn; each turn begins with all of the one before."""

    def __init__(self, cluster: Cluster, num_chats: int) -> None:
        self._random = Random(7)
        self._chats = [
            (cluster.acme if number % 2 else cluster.globex, self._tokens(300)) for number in range(num_chats)
        ]

    def _tokens(self, num: int) -> list[int]:
        return [self._random.randrange(1, 30_000) for _ in range(num)]

    async def turn(self, number: int) -> tuple[int, int]:
        """Prompt tokens that were reused, and that could have been: those of the last turn."""
        tenant, history = self._chats[number]
        num_before = len(history)
        history += self._tokens(20)
        answer = await tenant.generate(tokens_request(history, max_tokens=8))
        made = unpack(answer.completions[0].token_ids.packed)
        assert made == expected(history, 8)
        history += made
        return answer.usage.cached_tokens, num_before

    async def round(self) -> tuple[int, int]:
        """One turn of each."""
        turns = await asyncio.gather(*(self.turn(number) for number in range(len(self._chats))))
        return sum(reused for reused, _ in turns), sum(before for _, before in turns)


async def test_hits_stay_when_a_worker_leaves(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, [SLOW] * 3) as cluster:
        chats = Chats(cluster, 12)
        await chats.round()
        await asyncio.sleep(0.5)
        reused, possible = await chats.round()
        before = reused / possible
        held = [host.thread.load.used_blocks for host in cluster.workers]
        leaving = held.index(max(held))
        drained = await drain(cluster, f"worker-{leaving}")
        assert drained.cached_blocks == held[leaving]
        assert drained.moved_blocks >= HIT_RATE_KEPT * held[leaving]
        await eventually(lambda: not cluster.workers[leaving].healthy)
        assert cluster.workers[leaving].has_retired
        reused, possible = await chats.round()
        assert reused / possible >= HIT_RATE_KEPT * before, f"{reused / possible:.3f} after {before:.3f}"
        served = {host.record().worker_id for host in cluster.workers if host.healthy}
        assert f"worker-{leaving}" not in served


async def test_hits_stay_where_everybodys_cache_is_full(urls: RoleUrls, tmp_path: Path) -> None:
    """Of prompts that nobody asks for again, as caches are. Evicted is what was used longest ago: by classes of use
    it may be the end of a prompt that was asked for just now, with or without a worker that leaves."""
    random = Random(3)
    full = {**SLOW, "pool": NumBlocks(120), "eviction_policy": PolicyKind.LRU}
    async with running_cluster(urls, tmp_path, [full] * 3) as cluster:
        while min(host.thread.load.used_blocks for host in cluster.workers) < 115:
            prompts = [[random.randrange(1, 30_000) for _ in range(400)] for _ in range(6)]
            await asyncio.gather(*(cluster.acme.generate(tokens_request(each, max_tokens=1)) for each in prompts))
        hot = [[random.randrange(1, 30_000) for _ in range(160)] for _ in range(8)]
        reused = Counter[str]()

        async def are_hit() -> bool:
            """Almost all, at whichever worker each is."""
            reused.clear()
            for prompt in hot:
                request = tokens_request([*prompt, random.randrange(1, 30_000)], max_tokens=1)
                answer = await cluster.acme.generate(request)
                reused[answer.route.worker_id] += answer.usage.cached_tokens
            return reused.total() >= HIT_RATE_KEPT * 160 * len(hot)

        await eventually_async(are_hit)
        ((leaving, _),) = reused.most_common(1)
        await drain(cluster, leaving)

        async def are_there() -> bool:
            found = [await matched(cluster.acme, prompt) for prompt in hot]
            return sum(found) >= HIT_RATE_KEPT * 160 * len(hot)

        await eventually_async(are_there)
        assert await are_hit()
        assert leaving not in reused


@pytest.mark.nightly
async def test_hits_stay_for_a_minute_after_a_worker_has_left(urls: RoleUrls, tmp_path: Path) -> None:
    """Turns come one after the other, as people write them."""
    async with running_cluster(urls, tmp_path, [SLOW] * 4) as cluster:
        chats = Chats(cluster, 24)
        for _ in range(3):
            reused, possible = await chats.round()
            await asyncio.sleep(0.5)
        before = reused / possible
        held = [host.thread.load.used_blocks for host in cluster.workers]
        await drain(cluster, f"worker-{held.index(max(held))}")
        until_s = time.monotonic() + 60.0
        reused = possible = number = 0
        while time.monotonic() < until_s:
            hit, most = await chats.turn(number % 24)
            reused, possible, number = reused + hit, possible + most, number + 1
            await asyncio.sleep(0.25)
        assert reused / possible >= HIT_RATE_KEPT * before, f"{reused / possible:.3f} after {before:.3f}"


async def test_what_runs_ends_before_the_worker_leaves(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, [{**SLOW, "digest_step_s": 0.02}] * 2) as cluster:
        prompt = list(range(100, 180))
        running = asyncio.create_task(cluster.acme.generate(tokens_request(prompt, max_tokens=40)))
        await eventually(lambda: any(host.thread.num_open for host in cluster.workers))
        leaving = next(at for at, host in enumerate(cluster.workers) if host.thread.num_open)
        drained = await drain(cluster, f"worker-{leaving}")
        assert drained.handed_over_requests == 0
        assert unpack((await running).completions[0].token_ids.packed) == expected(prompt, 40)


async def test_what_does_not_end_in_time_goes_on_elsewhere(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, [{**SLOW, "digest_step_s": 0.05}] * 2) as cluster:
        prompt = list(range(100, 180))
        running = asyncio.create_task(cluster.acme.generate(tokens_request(prompt, max_tokens=100)))
        await eventually(lambda: any(host.thread.num_open for host in cluster.workers))
        leaving = next(at for at, host in enumerate(cluster.workers) if host.thread.num_open)
        drained = await drain(cluster, f"worker-{leaving}", grace_s=0.5)
        assert drained.handed_over_requests == 1
        assert unpack((await running).completions[0].token_ids.packed) == expected(prompt, 100)


async def test_tenants_blocks_stay_theirs(urls: RoleUrls, tmp_path: Path) -> None:
    """What a worker gives away is found by the tenant that had it, and by no other."""
    async with running_cluster(urls, tmp_path, [SLOW] * 2) as cluster:
        prompt = list(range(500, 900))
        first = await cluster.acme.generate(tokens_request(prompt, max_tokens=2))
        assert first.usage.cached_tokens == 0
        leaving = next(at for at, host in enumerate(cluster.workers) if host.thread.load.used_blocks)
        assert (await drain(cluster, f"worker-{leaving}")).moved_blocks >= 24
        await eventually(lambda: not cluster.workers[leaving].healthy)
        await until_indexed(cluster.acme, prompt)
        assert (await cluster.globex.generate(tokens_request(prompt, max_tokens=2))).usage.cached_tokens == 0


async def until_indexed(tenant: Tenant, prompt: list[int]) -> None:
    async def is_hit() -> bool:
        answer = await tenant.generate(tokens_request([*prompt[:384], int(time.time() * 1e6) % 30_000], max_tokens=1))
        return bool(answer.usage.cached_tokens >= 368)

    await eventually_async(is_hit)


async def test_who_cannot_leave_is_told_why(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, [SLOW]) as cluster:
        with pytest.raises(grpc.aio.AioRpcError, match="no worker 'nobody'") as caught:
            await drain(cluster, "nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError, match="start another worker") as caught:
            await drain(cluster, "worker-0")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError, match="grace") as caught:
            await drain(cluster, "worker-0", grace_s=100_000.0)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert cluster.workers[0].healthy
        answer: pb.GenerateResponse = await cluster.acme.generate(tokens_request([1, 2, 3], max_tokens=1))
        assert answer.usage.prompt_tokens == 3


async def test_a_prompt_that_load_sends_elsewhere_is_fetched(urls: RoleUrls, tmp_path: Path) -> None:
    """The worker that has the prefix is full: another one gets the request, and the blocks."""
    async with running_cluster(
        urls, tmp_path, [{**SLOW, "max_num_sequences": 1, "digest_step_s": 0.02}] * 2
    ) as cluster:
        for attempt in range(4):  # where a busy machine lets a fetch take too long, its prompt is computed
            prompt = [attempt + 1, *range(100, 1_700)]
            await cluster.acme.generate(tokens_request(prompt, max_tokens=60))
            await asyncio.sleep(0.7)
            answers = await asyncio.gather(
                *(cluster.acme.generate(tokens_request([*prompt, number], max_tokens=60)) for number in range(8))
            )
            for number, answer in enumerate(answers):
                assert unpack(answer.completions[0].token_ids.packed) == expected([*prompt, number], 60)
            if any(answer.usage.cached_by_tier.peer_tokens >= 1_584 for answer in answers):
                return
        pytest.fail("nothing was fetched")
