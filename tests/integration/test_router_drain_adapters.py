"""Adapters in the exchange between workers: their blocks are fetched and given like the model's, to who serves them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stemcache.admin.v1 import admin_pb2

from cache_store.adapter_files import read_adapter
from cache_store.tokens import pack, unpack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from tests.support.adapter_folders import plain_tensors, write_folder
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_METADATA, Cluster, Tenant, eventually, running_cluster, tokens_request
from worker.config import NumBlocks
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.sampling import SamplingParams

pytestmark = pytest.mark.alone

SLOW = {"digest_token_s": 0.0002, "digest_step_s": 0.02, "pool": NumBlocks(2_048)}


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


def expected(prompt: list[int], num_tokens: int, path: Path | None) -> list[int]:
    """What the model says without a cache."""
    info = digest_model()
    params = SamplingParams(0.0, 1.0, 0, 0, num_tokens, 0, ())
    adapters = () if path is None else (read_adapter(path).digest,)
    (sample,) = expected_output(info.geometry, info.vocab_size, pack(prompt), params, 1, *adapters)
    return list(sample.token_ids)


async def load(cluster: Cluster, folder: Path) -> Path:
    """Adapter `one` on all workers."""
    path = write_folder(folder, plain_tensors())
    request = admin_pb2.LoadAdapterRequest(name="one", folder=str(path))
    await cluster.adapter_admin.LoadAdapter(request, timeout=60, metadata=ADMIN_METADATA)
    return path


async def test_a_prompt_for_an_adapter_that_load_sends_elsewhere_is_fetched(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path / "router", [{**SLOW, "max_num_sequences": 1}] * 2) as cluster:
        path = await load(cluster, tmp_path / "one")
        for attempt in range(4):  # where a busy machine lets a fetch take too long, its prompt is computed
            prompt = [attempt + 1, *range(100, 1_700)]
            await cluster.acme.generate(tokens_request(prompt, model="one", max_tokens=60))
            await asyncio.sleep(0.7)
            answers = await asyncio.gather(
                *(
                    cluster.acme.generate(tokens_request([*prompt, number], model="one", max_tokens=60))
                    for number in range(8)
                )
            )
            for number, answer in enumerate(answers):
                assert unpack(answer.completions[0].token_ids.packed) == expected([*prompt, number], 60, path)
            if any(answer.usage.cached_by_tier.peer_tokens >= 1_584 for answer in answers):
                return
        pytest.fail("nothing was fetched")


async def test_a_drain_moves_the_model_and_adapters_of_all_tenants(urls: RoleUrls, tmp_path: Path) -> None:
    """One of three workers leaves; what it had for each model and tenant is found at the two that stay."""
    async with running_cluster(urls, tmp_path / "router", [SLOW] * 3) as cluster:
        path = await load(cluster, tmp_path / "one")
        callers = [(tenant, model) for tenant in (cluster.acme, cluster.globex) for model in ("", "one")]
        prompts = [[number, *range(200, 600)] for number in range(6)]
        for prompt in prompts:
            await asyncio.gather(*(ask(tenant, model, prompt, path) for tenant, model in callers))
        await asyncio.sleep(1.0)
        held = [host.thread.load.used_blocks for host in cluster.workers]
        leaving = held.index(max(held))
        request = admin_pb2.DrainWorkerRequest(worker_id=f"worker-{leaving}")
        drained = await cluster.cluster_admin.DrainWorker(request, timeout=120, metadata=ADMIN_METADATA)
        assert drained.moved_blocks == held[leaving]
        await eventually(lambda: not cluster.workers[leaving].healthy)
        await asyncio.sleep(1.0)
        for prompt in prompts:
            hits = await asyncio.gather(*(ask(tenant, model, prompt, path) for tenant, model in callers))
            assert min(hits) >= 384, hits


async def ask(tenant: Tenant, model: str, prompt: list[int], path: Path) -> int:
    """Tokens that were reused."""
    answer = await tenant.generate(tokens_request(prompt, model=model, max_tokens=2))
    assert unpack(answer.completions[0].token_ids.packed) == expected(prompt, 2, path if model else None)
    return int(answer.usage.cached_tokens)
