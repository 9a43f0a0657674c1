"""A whole worker over a real (tiny) model: the same answers through gRPC as from `transformers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.domains import make_domain
from tests.support.memory_stores import MemoryStores
from tests.support.reference import generate
from tests.support.tiny_models import kernel_cache, load_tiny
from tests.support.worker_host import client_of, digest_config, running_workers
from worker.config import KvBytes, RunnerKind

PROMPT = [3 + number % 300 for number in range(70)]


async def test_a_paged_worker_answers_as_transformers_does_cold_and_warm(tmp_path: Path) -> None:
    model = load_tiny("llama", tmp_path)
    expected = generate(model, PROMPT, 24).tokens
    config = digest_config(
        runner=RunnerKind.PAGED,
        model_folder=tmp_path / "llama",
        cache_dir=kernel_cache(tmp_path),
        pool=KvBytes(4 << 20),
    )
    config = replace(config, model_name="tiny")
    async with running_workers([config], MemoryStores().connect) as [host], client_of(host) as client:
        domain = make_domain("acme", kv_format=host.model.kv_format.digest())
        cold = await client.execute(domain, PROMPT, max_tokens=24)
        warm = await client.execute(domain, PROMPT, max_tokens=24)
        other = await client.execute(make_domain("globex", kv_format=domain.kv_format), PROMPT, max_tokens=24)
        record = host.record()
    assert (cold.cached_tokens, other.cached_tokens) == (0, 0)
    assert warm.cached_tokens >= 64
    assert cold.tokens[0] == warm.tokens[0] == other.tokens[0] == expected
    assert record.model == "tiny"
    assert record.num_blocks == (4 << 20) // (record.kv_bytes_per_token * record.block_size)
