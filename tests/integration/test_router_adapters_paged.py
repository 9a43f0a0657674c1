"""Adapters on a real model through router and worker: tokens of merged weights; what does not fit changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2

from cache_store.tokens import unpack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from tests.support.adapter_folders import merged, plain_tensors, write_adapter, write_folder
from tests.support.redis_servers import server_named
from tests.support.reference import generate
from tests.support.router_host import ADMIN_METADATA, Cluster, running_cluster, tokens_request
from tests.support.runner_drivers import tokens
from tests.support.tiny_models import tiny_model
from worker.config import NumBlocks, RunnerKind
from worker.torch_runner.loader import LoadedModel, load_model

PROMPT = tokens(50, 1)
NUM_NEW = 20


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load_model(tiny_model("llama", tmp_path))


@pytest.fixture
async def cluster(urls: RoleUrls, model: LoadedModel, tmp_path: Path) -> AsyncIterator[Cluster]:
    worker = {
        "runner": RunnerKind.PAGED,
        "model_name": "tiny",
        "model_folder": model.folder.path,
        "pool": NumBlocks(64),
    }
    async with running_cluster(urls, tmp_path / "router", workers=(worker,)) as running:
        yield running


async def load(cluster: Cluster, name: str, path: Path) -> None:
    request = admin_pb2.LoadAdapterRequest(name=name, folder=str(path), base_model="tiny")
    await cluster.adapter_admin.LoadAdapter(request, timeout=90, metadata=ADMIN_METADATA)


async def ask(cluster: Cluster, model: str) -> tuple[list[int], int]:
    request = tokens_request(PROMPT, model=model, max_tokens=NUM_NEW)
    response = await cluster.acme.generate(request, 60)
    return unpack(response.completions[0].token_ids.packed), response.usage.cached_tokens


async def test_a_loaded_adapter_answers_as_merged_weights_would(
    cluster: Cluster, model: LoadedModel, tmp_path: Path
) -> None:
    folders = [write_adapter(tmp_path / name, model, seed) for seed, name in enumerate("ab")]
    await load(cluster, "mine", folders[0])
    before, after = (generate(merged(model, folder), PROMPT, NUM_NEW).tokens for folder in folders)
    assert await ask(cluster, "mine") == (before, 0)
    assert await ask(cluster, "tiny") == (generate(model, PROMPT, NUM_NEW).tokens, 0)
    assert await ask(cluster, "mine") == (before, 49)
    await load(cluster, "mine", folders[1])
    assert await ask(cluster, "mine") == (after, 0)
    assert await ask(cluster, "mine") == (after, 49)


async def test_what_no_worker_takes_is_refused_and_what_was_loaded_stays_warm(
    cluster: Cluster, model: LoadedModel, tmp_path: Path
) -> None:
    await load(cluster, "mine", write_adapter(tmp_path / "a", model, 1))
    before = (await ask(cluster, "mine"))[0]
    misfit = write_folder(tmp_path / "misfit", plain_tensors())
    for name in ("mine", "other"):
        with pytest.raises(grpc.aio.AioRpcError, match="it was trained for another model") as refused:
            await load(cluster, name, misfit)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await ask(cluster, "mine") == (before, 49)
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await ask(cluster, "other")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
