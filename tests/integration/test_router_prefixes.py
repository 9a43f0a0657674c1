"""Lookups, warming and pins through the real stack: router, workers, Valkey, gRPC on loopback."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, QuotaFailure, RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2 as pb
from stemcache.v1 import inference_pb2
from stemcache.v1.inference_pb2 import CachedByTier

from cache_store.domain import derive_domain
from services.cli.exit_codes import ExitCode
from services.cli.main import main
from services.client import AsyncStemcacheClient, Tokens
from services.cluster.valkey import EmbeddedValkey
from services.router.readiness import CACHE_SERVICE
from services.tenants.master_key import cluster_key
from tests.support.prefix_calls import (
    MINUTE,
    PROMPT,
    call,
    lookup,
    matched,
    pin,
    pins,
    prompt_of,
    refusal,
    unpin,
    until_matched,
    warm,
)
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    MASTER,
    MODEL,
    Cluster,
    Tenant,
    detail_of,
    eventually,
    eventually_async,
    running_cluster,
    start_worker,
    tokens_request,
)
from tests.support.worker_host import WorkerClient
from tests.support.worker_process import worker_process
from worker.config import NumBlocks


def said(error: grpc.aio.AioRpcError) -> tuple[Any, ...]:
    """All that a caller sees."""
    return error.code(), error.details(), tuple(error.trailing_metadata() or ())


@asynccontextmanager
async def running(
    request: pytest.FixtureRequest, folder: Path, num_workers: int = 1, **limits: Any
) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    changes: list[dict[str, Any]] = [{"pool": NumBlocks(100)} for _ in range(num_workers)]
    async with running_cluster(urls, folder, changes, **limits) as made:
        yield made


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(request, tmp_path) as made:
        yield made


async def test_a_lookup_tells_what_the_next_request_reuses(cluster: Cluster) -> None:
    assert await lookup(cluster.acme) == pb.LookupPrefixResponse(prompt_tokens=100, matched_by_tier=CachedByTier())
    await cluster.acme.generate(tokens_request(PROMPT))
    await until_matched(cluster.acme, 96)
    assert await lookup(cluster.acme) == pb.LookupPrefixResponse(
        prompt_tokens=100, matched_tokens=96, matched_blocks=6, matched_by_tier=CachedByTier(device_tokens=96)
    )
    assert (await cluster.acme.generate(tokens_request(PROMPT))).usage.cached_tokens == 96


async def test_another_tenants_prefix_looks_like_an_absent_one(cluster: Cluster) -> None:
    absent = await lookup(cluster.globex)
    await warm(cluster.acme)
    await until_matched(cluster.acme, 96)
    assert await lookup(cluster.globex) == absent
    assert (await matched(cluster.acme, partition="p"), await matched(cluster.acme)) == (0, 96)


async def test_warming_stores_a_prompt_and_generates_nothing(cluster: Cluster) -> None:
    cold = await warm(cluster.acme, request_id="w")
    assert (cold.usage.prompt_tokens, cold.usage.cached_tokens, cold.usage.completion_tokens) == (100, 0, 0)
    assert cold.route.worker_id == "worker-0"
    assert (await warm(cluster.acme)).usage.cached_tokens == 96
    assert (await warm(cluster.globex)).usage.cached_tokens == 0
    record = await cluster.record(cluster.acme, "w")
    assert (record.status, record.model) == ("OK", MODEL)


async def test_warming_is_idempotent_by_its_id(cluster: Cluster) -> None:
    first = await warm(cluster.acme, request_id="w")
    assert await warm(cluster.acme, request_id="w") == first
    error = await refusal(warm(cluster.acme, range(200), request_id="w"))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_ten_at_once_are_computed_once(cluster: Cluster) -> None:
    answers = await asyncio.gather(*(warm(cluster.acme) for _ in range(10)))
    computed = [answer.usage.computed_tokens for answer in answers]
    assert sum(computed) < 2 * 100


async def test_a_pinned_prefix_stays_where_another_goes(cluster: Cluster) -> None:
    other = range(200, 300)
    for tokens in (PROMPT, other):
        await warm(cluster.acme, tokens)
    made = await pin(cluster.acme, display_name="system prompt")
    models = await cluster.acme.stub.ListModels(inference_pb2.ListModelsRequest(), metadata=cluster.acme.metadata)
    model = models.models[0]
    assert (made.display_name, made.model, made.block_count, made.worker_count) == ("system prompt", model.name, 6, 1)
    assert made.size_bytes == 96 * model.kv_bytes_per_token
    await warm(cluster.globex, range(1_000, 1_000 + 94 * 16))
    assert (await warm(cluster.acme)).usage.cached_tokens == 96
    assert await matched(cluster.acme, other) == 0


async def test_pins_are_their_tenants_alone(cluster: Cluster) -> None:
    await warm(cluster.acme)
    await warm(cluster.globex)
    mine, theirs = await pin(cluster.acme), await pin(cluster.globex)
    assert await pins(cluster.acme) == [mine]
    assert await pins(cluster.globex) == [theirs]
    assert not await unpin(cluster.globex, mine.pin_id)
    assert not await unpin(cluster.globex, "absent")
    assert await pins(cluster.acme) == [mine]
    assert await unpin(cluster.acme, mine.pin_id)
    assert not await unpin(cluster.acme, mine.pin_id)
    assert await pins(cluster.acme) == []


async def test_another_tenants_prefix_is_refused_byte_for_byte_like_an_absent_one(cluster: Cluster) -> None:
    absent = await refusal(pin(cluster.globex))
    assert absent.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "warm it first" in (absent.details() or "")
    await warm(cluster.acme)
    assert said(await refusal(pin(cluster.globex))) == said(absent)
    assert said(await refusal(pin(cluster.acme, partition="p"))) == said(absent)
    assert (await pin(cluster.acme)).block_count == 6


async def test_a_rotated_tenants_pins_are_absent(cluster: Cluster) -> None:
    await warm(cluster.acme)
    made = await pin(cluster.acme)
    assert await pins(cluster.acme) == [made]
    rotate = admin_pb2.RotateEpochRequest(tenant="acme")
    await cluster.tenant_admin.RotateEpoch(rotate, metadata=ADMIN_METADATA)
    assert await pins(cluster.acme) == []
    assert not await unpin(cluster.acme, made.pin_id)
    assert await matched(cluster.acme) == 0


async def test_the_limit_says_its_own_numbers_and_when_to_come_again(cluster: Cluster) -> None:
    long = range(500, 700)
    await warm(cluster.acme)
    await warm(cluster.acme, long)
    await pin(cluster.acme)
    error = await refusal(pin(cluster.acme, long))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail_of(error, QuotaFailure).violations[0].subject == "pinned blocks"
    assert detail_of(error, RetryInfo).retry_delay.ToSeconds() >= 1
    assert "pinned 6 blocks" in (error.details() or "")
    await warm(cluster.globex)
    assert (await pin(cluster.globex)).block_count == 6, "the limit is each tenant's own"


async def test_the_operator_moves_the_limit_and_a_lowered_one_ends_no_pin(cluster: Cluster) -> None:
    long = range(500, 700)
    await warm(cluster.acme, long)
    assert (await refusal(pin(cluster.acme, long))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    async def until_limit_is(max_pinned: float, wanted: bool) -> None:
        request = admin_pb2.SetTenantQuotaRequest(tenant="acme", max_pinned=max_pinned)
        await cluster.tenant_admin.SetTenantQuota(request, timeout=10.0, metadata=ADMIN_METADATA)

        async def is_so() -> bool:
            error = await maybe_refusal(pin(cluster.acme, long))
            assert error is None or error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return (error is None) is wanted

        await eventually_async(is_so)

    await until_limit_is(0.2, wanted=True)
    held = await pins(cluster.acme)
    assert held
    await until_limit_is(0.0, wanted=False)
    assert len(await pins(cluster.acme)) >= len(held)


async def test_a_pin_ends_by_itself(cluster: Cluster) -> None:
    await warm(cluster.acme)
    await pin(cluster.acme, ttl=Duration(seconds=1))

    async def is_over() -> bool:
        return not await pins(cluster.acme)

    await eventually_async(is_over)
    assert await matched(cluster.acme) == 96


async def test_a_pin_stands_on_every_worker_that_holds_the_longest_match(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with running(request, tmp_path, num_workers=3) as cluster:
        await hold_on(cluster, cluster.acme, PROMPT, "worker-0", "worker-2")
        await hold_on(cluster, cluster.acme, PROMPT[:50], "worker-1")
        made = await pin(cluster.acme)
        assert (made.worker_count, made.block_count) == (2, 6)
        assert await pins(cluster.acme) == [made]
        assert await unpin(cluster.acme, made.pin_id)
        for worker in cluster.workers:
            assert await worker.thread.call(lambda engine: engine.num_held_blocks, 5) == 0


async def test_a_worker_that_does_not_answer_makes_no_answer_that_looks_whole(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    key = cluster_key(MASTER)
    async with running(request, tmp_path) as cluster, worker_process("worker-1", valkey.urls.worker, key) as process:
        await eventually(lambda: len(cluster.router._parts.view.records()) == 2, 30)
        await hold_on(cluster, cluster.acme, PROMPT, "worker-0", "worker-1")
        made = await pin(cluster.acme)
        assert made.worker_count == 2
        process.send_signal(signal.SIGSTOP)
        for error in await asyncio.gather(refusal(pins(cluster.acme)), refusal(unpin(cluster.acme, "absent"))):
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "1 of 2 workers did not answer" in (error.details() or "")
            assert detail_of(error, RetryInfo).retry_delay.ToMilliseconds() > 0
        [left] = await pins(cluster.acme)
        assert (left.pin_id, left.worker_count) == (made.pin_id, 1), "it is known to be lost, and its pins with it"
        assert await unpin(cluster.acme, made.pin_id)


async def test_pins_of_a_worker_that_starts_again_are_gone(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    async with running(request, tmp_path) as cluster:
        await warm(cluster.acme)
        await pin(cluster.acme)
        await cluster.workers[0].stop()
        cluster.workers[0] = await start_worker(valkey.urls, "worker-0", pool=NumBlocks(100))
        try:

            async def is_back() -> bool:
                return await maybe_refusal(warm(cluster.acme, range(5))) is None

            await eventually_async(is_back)
            assert await pins(cluster.acme) == []
        finally:
            await cluster.workers[0].stop()


async def maybe_refusal(awaitable: Any) -> grpc.aio.AioRpcError | None:
    try:
        await awaitable
    except grpc.aio.AioRpcError as error:
        return error
    return None


async def hold_on(cluster: Cluster, tenant: Tenant, tokens: Sequence[int], *worker_ids: str) -> None:
    """Stores a prompt on exactly some workers, as a router would that has chosen them."""
    known = cluster.router._parts.directory.tenant_by_name(tenant.name)
    for worker in cluster.router._parts.view.records():
        if worker.worker_id in worker_ids:
            domain = derive_domain(known.secret, known.id, known.epoch, "", worker.kv_format, worker.model)
            async with WorkerClient(worker.address, worker.incarnation, cluster_key(MASTER)) as client:
                await client.execute(domain, tokens, max_tokens=1)


BAD: dict[str, tuple[str, Any]] = {
    "prompt": ("LookupPrefix", pb.LookupPrefixRequest()),
    "prompt.token_ids.packed": ("WarmPrefix", pb.WarmPrefixRequest(prompt=prompt_of(()))),
    "prompt.token_ids": ("LookupPrefix", pb.LookupPrefixRequest(prompt=prompt_of((1 << 30,)))),
    "partition": ("LookupPrefix", pb.LookupPrefixRequest(prompt=prompt_of((1,)), partition="é" * 129)),
    "partition ": ("PinPrefix", pb.PinPrefixRequest(prompt=prompt_of((1,)), partition="é" * 129, ttl=MINUTE)),
    "ttl": ("PinPrefix", pb.PinPrefixRequest(prompt=prompt_of((1,)))),
    "ttl ": ("PinPrefix", pb.PinPrefixRequest(prompt=prompt_of((1,)), ttl=Duration(seconds=31 * 86_400))),
    "display_name": (
        "PinPrefix",
        pb.PinPrefixRequest(prompt=prompt_of((1,)), ttl=MINUTE, display_name="é" * 65),
    ),
    "pin_id": ("UnpinPrefix", pb.UnpinPrefixRequest()),
    "pin_id ": ("UnpinPrefix", pb.UnpinPrefixRequest(pin_id="x" * 129)),
    "cache_policy.mode": (
        "WarmPrefix",
        pb.WarmPrefixRequest(
            prompt=prompt_of((1,)),
            cache_policy=inference_pb2.CachePolicy(mode=inference_pb2.CachePolicy.MODE_READ_ONLY),
        ),
    ),
    "cache_policy.no_store": (
        "WarmPrefix",
        pb.WarmPrefixRequest(prompt=prompt_of((1,)), cache_policy=inference_pb2.CachePolicy(no_store=True)),
    ),
    "cache_policy.ttl": (
        "WarmPrefix",
        pb.WarmPrefixRequest(
            prompt=prompt_of((1,)), cache_policy=inference_pb2.CachePolicy(ttl=Duration(seconds=0, nanos=5))
        ),
    ),
    "prompt ": ("WarmPrefix", pb.WarmPrefixRequest(prompt=prompt_of([1] * 20_000))),
    "prompt  ": ("LookupPrefix", pb.LookupPrefixRequest(prompt=prompt_of([1] * 20_000))),
    "prompt   ": ("PinPrefix", pb.PinPrefixRequest(prompt=prompt_of([1] * 20_000), ttl=MINUTE)),
}


async def test_bad_input_is_refused_by_the_name_of_its_field(cluster: Cluster) -> None:
    for field, (name, message) in BAD.items():
        error = await refusal(call(cluster.acme, name, message))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (name, field)
        assert detail_of(error, BadRequest).field_violations[0].field == field.strip(), name


async def test_without_a_live_key_nothing_is_told(cluster: Cluster) -> None:
    stranger = Tenant("nobody", "sc-x", cluster.channel)
    for name, message in {
        "LookupPrefix": pb.LookupPrefixRequest(prompt=prompt_of(PROMPT)),
        "WarmPrefix": pb.WarmPrefixRequest(prompt=prompt_of(PROMPT)),
        "PinPrefix": pb.PinPrefixRequest(prompt=prompt_of(PROMPT), ttl=MINUTE),
        "UnpinPrefix": pb.UnpinPrefixRequest(pin_id="p"),
        "ListPins": pb.ListPinsRequest(),
    }.items():
        error = await refusal(call(stranger, name, message))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED, name


async def test_the_python_client_steers_the_cache(cluster: Cluster) -> None:
    prompt = Tokens(tuple(PROMPT))
    async with AsyncStemcacheClient(cluster.router.address, cluster.acme.key) as client:
        assert (await client.cache.warm(prompt)).computed_tokens == 100
        made = await client.cache.pin(prompt, 60, name="n")
        assert await client.cache.pins() == (made,)
        await until_matched(cluster.acme, 96)
        assert (await client.cache.lookup(prompt)).matched_blocks == 6
        assert await client.cache.unpin(made.pin_id)


async def test_the_command_line_steers_the_cache(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def run(action: str, *arguments: str) -> str:
        flags = ["--address", cluster.router.address, "--key", cluster.acme.key]
        assert main(["cache", action, *flags, *arguments]) == ExitCode.OK
        return capsys.readouterr().out

    text = ["--system", "be brief " * 8, "hi"]
    assert "computed" in await asyncio.to_thread(run, "warm", *text)
    pin_id = (await asyncio.to_thread(run, "pin", "--ttl", "10m", "--name", "n", *text)).split()[-1]
    assert pin_id in await asyncio.to_thread(run, "pins")
    assert "ended" in await asyncio.to_thread(run, "unpin", pin_id)
    assert pin_id not in await asyncio.to_thread(run, "pins")


async def test_a_caller_without_a_key_is_refused_before_its_message(cluster: Cluster) -> None:
    silent = cluster.channel.stream_unary(f"/{CACHE_SERVICE}/ListPins")
    error = await refusal(silent(metadata=(("authorization", "Bearer sc-x"),), timeout=10.0))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_service_is_ready_with_the_other_one(cluster: Cluster) -> None:
    health = health_pb2_grpc.HealthStub(cluster.channel)

    async def is_ready() -> bool:
        answer = await health.Check(health_pb2.HealthCheckRequest(service=CACHE_SERVICE))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    await eventually_async(is_ready)
