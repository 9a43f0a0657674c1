"""Generation through the real stack: router, workers, Valkey, gRPC on loopback; exact, isolated, and told truly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from stemcache.v1 import inference_pb2 as pb

from cache_store.tokens import unpack
from services.cluster.valkey import EmbeddedValkey
from tests.support.redis_servers import server_named
from tests.support.router_host import Cluster, running_cluster, tokens_request

PROMPT = list(range(100, 180))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path) as made:
        yield made


async def test_a_request_and_its_repetition(cluster: Cluster) -> None:
    cold = await cluster.acme.generate(tokens_request(PROMPT))
    warm = await cluster.acme.generate(tokens_request(PROMPT))
    assert warm.completions == cold.completions
    assert (cold.usage.prompt_tokens, cold.usage.cached_tokens, cold.usage.computed_tokens) == (80, 0, 80)
    assert (warm.usage.cached_tokens, warm.usage.computed_tokens) == (79, 1)
    assert cold.usage.completion_tokens == 8
    assert cold.completions[0].finish_reason == pb.FINISH_REASON_LENGTH
    assert len(unpack(cold.completions[0].token_ids.packed)) == 8
    assert cold.route.worker_id == "worker-0"
    assert (cold.route.attempts, cold.route.degraded) == (1, False)
    assert cold.request_id
    assert cold.request_id != warm.request_id
