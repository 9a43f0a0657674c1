"""Adapters through a router and real workers: called by name, apart from each other, replaced, private, failing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.adapter_files import read_adapter
from cache_store.tokens import pack, unpack
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from tests.support.adapter_folders import plain_tensors, write_folder
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    MODEL,
    Cluster,
    Tenant,
    eventually,
    running_cluster,
    start_worker,
    tokens_request,
)
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.sampling import SamplingParams

PROMPT = list(range(2, 102))
"""Six blocks of 16 and a part."""


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@pytest.fixture
async def cluster(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(urls, tmp_path / "router", workers=({}, {})) as running:
        yield running


def folder(tmp_path: Path, name: str, alpha: float = 8) -> Path:
    return write_folder(tmp_path / name, plain_tensors(), lora_alpha=alpha)


async def load(cluster: Cluster, name: str, path: Path, *tenants: str) -> Any:
    request = admin_pb2.LoadAdapterRequest(name=name, folder=str(path), tenants=tenants)
    return (await cluster.adapter_admin.LoadAdapter(request, timeout=60, metadata=ADMIN_METADATA)).adapter


async def unload(cluster: Cluster, name: str) -> list[str]:
    request = admin_pb2.UnloadAdapterRequest(name=name)
    response = await cluster.adapter_admin.UnloadAdapter(request, timeout=60, metadata=ADMIN_METADATA)
    return list(response.pending_workers)


async def models(cluster: Cluster, tenant: Tenant) -> dict[str, str]:
    response = await tenant.stub.ListModels(pb.ListModelsRequest(), timeout=10, metadata=tenant.metadata)
    return {model.name: model.base_model for model in response.models}


async def ask(tenant: Tenant, model: str, **fields: Any) -> tuple[list[int], int]:
    """Tokens and cached tokens of a greedy request."""
    response = await tenant.generate(tokens_request(PROMPT, model=model, **fields))
    return unpack(response.completions[0].token_ids.packed), response.usage.cached_tokens


def expected(path: Path | None) -> list[int]:
    info = digest_model()
    params = SamplingParams(0.0, 1.0, 0, 0, 8, 0, ())
    adapters = () if path is None else (read_adapter(path).digest,)
    (sample,) = expected_output(info.geometry, info.vocab_size, pack(PROMPT), params, 1, *adapters)
    return list(sample.token_ids)


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def test_an_adapter_is_called_as_a_model_and_shares_no_blocks(cluster: Cluster, tmp_path: Path) -> None:
    a, b = folder(tmp_path, "a", 1), folder(tmp_path, "b", 2)
    status = await load(cluster, "one", a)
    assert [each.state for each in status.workers] == [admin_pb2.WorkerAdapter.STATE_SERVED] * 2
    assert status.digest == read_adapter(a).digest.hex()
    await load(cluster, "two", b)
    assert await models(cluster, cluster.acme) == {MODEL: "", "one": MODEL, "two": MODEL}
    for model, path in ((MODEL, None), ("one", a), ("two", b)):
        assert await ask(cluster.acme, model) == (expected(path), 0)
    for model, path in ((MODEL, None), ("one", a), ("two", b)):
        await eventually_hits(cluster.acme, model, expected(path))
    assert await ask(cluster.globex, "one") == (expected(a), 0)


async def eventually_hits(tenant: Tenant, model: str, tokens: list[int]) -> None:
    """The index may not have heard yet where the blocks are."""
    for _ in range(20):
        found, cached = await ask(tenant, model)
        assert found == tokens
        if cached:
            return
    raise AssertionError("nothing was reused")


async def test_other_content_under_the_same_name_is_another_format(cluster: Cluster, tmp_path: Path) -> None:
    a, b = folder(tmp_path, "a", 1), folder(tmp_path, "b", 2)
    await load(cluster, "mine", a)
    assert await ask(cluster.acme, "mine") == (expected(a), 0)
    await eventually_hits(cluster.acme, "mine", expected(a))
    await load(cluster, "mine", b)
    assert await ask(cluster.acme, "mine") == (expected(b), 0)
    await eventually_hits(cluster.acme, "mine", expected(b))
    await load(cluster, "mine", a)
    assert await ask(cluster.acme, "mine") == (expected(a), 0), "what was replaced is dropped for good"


async def test_loading_the_same_content_again_keeps_what_is_cached(cluster: Cluster, tmp_path: Path) -> None:
    a = folder(tmp_path, "a", 1)
    await load(cluster, "mine", a)
    await ask(cluster.acme, "mine")
    await load(cluster, "mine", a)
    await eventually_hits(cluster.acme, "mine", expected(a))


async def test_two_names_of_one_content_share_inside_a_tenant_only(cluster: Cluster, tmp_path: Path) -> None:
    a = folder(tmp_path, "a", 1)
    await load(cluster, "one", a)
    await load(cluster, "two", a)
    assert await ask(cluster.acme, "one") == (expected(a), 0)
    assert await ask(cluster.globex, "two") == (expected(a), 0)
    await eventually_hits(cluster.acme, "two", expected(a))
    await unload(cluster, "one")
    await eventually_hits(cluster.acme, "two", expected(a))


async def test_a_private_adapter_does_not_exist_for_others(cluster: Cluster, tmp_path: Path) -> None:
    a = folder(tmp_path, "a", 1)
    before = await refusal(ask(cluster.globex, "secret"))
    status = await load(cluster, "secret", a, "acme")
    assert list(status.tenants) == ["acme"]
    assert await ask(cluster.acme, "secret") == (expected(a), 0)
    await eventually_hits(cluster.acme, "secret", expected(a))
    assert await models(cluster, cluster.globex) == {MODEL: ""}
    assert await models(cluster, cluster.acme) == {MODEL: "", "secret": MODEL}
    after = await refusal(ask(cluster.globex, "secret"))
    assert after.code() is grpc.StatusCode.NOT_FOUND
    assert (after.details(), after.trailing_metadata()) == (before.details(), before.trailing_metadata())
    tokens = pb.Prompt(token_ids=pb.TokenIds(packed=pack(PROMPT)))
    for call in (
        lambda name: cluster.globex.stub.Tokenize(
            pb.TokenizeRequest(model=name, prompt=tokens), timeout=10, metadata=cluster.globex.metadata
        ),
        lambda name: cluster.globex.stub.Detokenize(
            pb.DetokenizeRequest(model=name, token_ids=tokens.token_ids), timeout=10, metadata=cluster.globex.metadata
        ),
        lambda name: cluster.globex.cache.LookupPrefix(
            cache_pb2.LookupPrefixRequest(model=name, prompt=tokens), timeout=10, metadata=cluster.globex.metadata
        ),
        lambda name: cluster.globex.cache.PurgeCache(
            cache_pb2.PurgeCacheRequest(model=name), timeout=10, metadata=cluster.globex.metadata
        ),
    ):
        hidden, unknown = await refusal(call("secret")), await refusal(call("nobody"))
        assert hidden.code() is unknown.code() is grpc.StatusCode.NOT_FOUND
        assert hidden.details() == unknown.details().replace("nobody", "secret")
    unnamed = await cluster.globex.generate(tokens_request(PROMPT))
    assert unpack(unnamed.completions[0].token_ids.packed) == expected(None), "no name still means the only model"


async def test_an_unloaded_adapter_is_unknown_and_its_blocks_are_gone(cluster: Cluster, tmp_path: Path) -> None:
    a = folder(tmp_path, "a", 1)
    await load(cluster, "mine", a)
    await ask(cluster.acme, "mine")
    assert await unload(cluster, "mine") == []
    assert (await refusal(ask(cluster.acme, "mine"))).code() is grpc.StatusCode.NOT_FOUND
    for worker in cluster.workers:
        used = await worker.thread.call(lambda engine: engine.load().used_blocks, 10)
        assert used == 0
    assert (await refusal(unload(cluster, "mine"))).code() is grpc.StatusCode.NOT_FOUND


async def test_a_bad_folder_is_refused_and_what_was_there_stays(cluster: Cluster, tmp_path: Path) -> None:
    a = folder(tmp_path, "a", 1)
    await load(cluster, "mine", a)
    await ask(cluster.acme, "mine")
    bad = write_folder(tmp_path / "bad", plain_tensors(), use_dora=True)
    for path, reason in ((bad, "DoRA"), (tmp_path / "nothing", "is no folder"), (Path("a/b"), "relative path")):
        error = await refusal(load(cluster, "mine", path))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason in (error.details() or "")
    await eventually_hits(cluster.acme, "mine", expected(a))


async def test_names_and_models_and_tenants_that_cannot_be_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    a = folder(tmp_path, "a", 1)
    assert "the name of a model" in ((await refusal(load(cluster, MODEL, a))).details() or "")
    assert "cannot name an adapter" in ((await refusal(load(cluster, "a b", a))).details() or "")
    assert (await refusal(load(cluster, "mine", a, "nobody"))).code() is grpc.StatusCode.NOT_FOUND
    request = admin_pb2.LoadAdapterRequest(name="mine", folder=str(a), base_model="other")
    call = cluster.adapter_admin.LoadAdapter(request, timeout=60, metadata=ADMIN_METADATA)
    assert (await refusal(call)).code() is grpc.StatusCode.NOT_FOUND


async def test_only_the_operator_loads(cluster: Cluster, tmp_path: Path) -> None:
    request = admin_pb2.LoadAdapterRequest(name="mine", folder=str(folder(tmp_path, "a")))
    call = cluster.adapter_admin.LoadAdapter(request, timeout=10, metadata=cluster.acme.metadata)
    assert (await refusal(call)).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_worker_that_starts_later_has_what_is_loaded(cluster: Cluster, urls: RoleUrls, tmp_path: Path) -> None:
    a = folder(tmp_path, "a", 1)
    await load(cluster, "mine", a)
    late = await start_worker(urls, "worker-9")
    try:
        await eventually(lambda: [each.error for each in late.record().adapters] == [""])
        assert late.record().adapters[0].digest == read_adapter(a).digest
    finally:
        await late.stop()


async def test_a_worker_that_finds_other_content_serves_none_and_says_why(
    cluster: Cluster, urls: RoleUrls, tmp_path: Path
) -> None:
    a = folder(tmp_path, "a", 1)
    await load(cluster, "mine", a)
    tokens = expected(a)
    folder(tmp_path, "a", 2)
    late = await start_worker(urls, "worker-9")
    try:
        await eventually(lambda: bool(late.record().adapters))
        assert "other content" in late.record().adapters[0].error
        await eventually_listed(cluster, "worker-9", admin_pb2.WorkerAdapter.STATE_FAILED)
        for _ in range(4):
            assert (await ask(cluster.acme, "mine"))[0] == tokens, "served by the workers that have it"
    finally:
        await late.stop()


async def eventually_listed(cluster: Cluster, worker_id: str, state: int) -> None:
    for _ in range(200):
        response = await cluster.adapter_admin.ListAdapters(
            admin_pb2.ListAdaptersRequest(), timeout=10, metadata=ADMIN_METADATA
        )
        if {each.worker_id: each.state for each in response.adapters[0].workers}.get(worker_id) == state:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the worker's state was not listed")


async def test_pins_tell_the_adapter_that_they_are_of(cluster: Cluster, tmp_path: Path) -> None:
    await load(cluster, "mine", folder(tmp_path, "a", 1))
    await ask(cluster.acme, "mine")
    prompt = pb.Prompt(token_ids=pb.TokenIds(packed=pack(PROMPT)))
    request = cache_pb2.PinPrefixRequest(model="mine", prompt=prompt)
    request.ttl.FromSeconds(60)
    pin = (await cluster.acme.cache.PinPrefix(request, timeout=10, metadata=cluster.acme.metadata)).pin
    assert pin.model == "mine"
    listed = await cluster.acme.cache.ListPins(cache_pb2.ListPinsRequest(), timeout=10, metadata=cluster.acme.metadata)
    assert [each.model for each in listed.pins] == ["mine"]
    await unload(cluster, "mine")
    listed = await cluster.acme.cache.ListPins(cache_pb2.ListPinsRequest(), timeout=10, metadata=cluster.acme.metadata)
    assert not listed.pins, "pins end with their adapter"
