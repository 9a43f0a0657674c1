"""Bad input and bad credentials through the real stack: the documented status, and nothing held afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, QuotaFailure, RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.tokens import pack
from services.cluster.valkey import EmbeddedValkey
from services.router.auth import MAX_OPEN_CALLS
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    Cluster,
    Tenant,
    detail_of,
    eventually,
    eventually_async,
    running_cluster,
    tokens_request,
)
from worker.config import NumBlocks

Code = grpc.StatusCode
POOL_TOKENS = 64 * 16


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    workers = ({"pool": NumBlocks(64), "digest_step_s": 0.002},)
    async with running_cluster(urls, tmp_path, workers, max_requests_per_tenant=2, max_message_bytes=200_000) as made:
        yield made


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


def chat(*roles: str) -> pb.GenerateRequest:
    messages = [pb.ChatMessage(role=role, content="x") for role in roles]
    return pb.GenerateRequest(prompt=pb.Prompt(chat=pb.ChatPrompt(messages=messages)))


INVALID: list[tuple[str, str, Callable[[], pb.GenerateRequest]]] = [
    ("no prompt", "prompt", lambda: pb.GenerateRequest()),
    ("empty text", "prompt.text", lambda: pb.GenerateRequest(prompt=pb.Prompt(text=""))),
    ("empty tokens", "prompt.token_ids.packed", lambda: tokens_request([])),
    ("empty chat", "prompt.chat.messages", lambda: chat()),
    ("chat without a role", "prompt.chat.messages[1].role", lambda: chat("user", "")),
    ("role too long", "prompt.chat.messages[0].role", lambda: chat("u" * 65)),
    ("too many messages", "prompt.chat.messages", lambda: chat(*["user"] * 4_097)),
    ("chat that the template refuses", "prompt.chat", lambda: chat("nobody")),
    ("token id outside the vocabulary", "prompt.token_ids", lambda: tokens_request([1, 32_000])),
    ("stop token outside", "sampling_params.stop_token_ids", lambda: tokens_request([1], stop_token_ids=[32_000])),
    ("longer than the model", "prompt", lambda: tokens_request([5] * 8_192)),
    ("longer than the pool", "prompt", lambda: tokens_request([5] * (POOL_TOKENS + 1))),
    ("answer longer than the pool", "sampling_params.max_tokens", lambda: tokens_request([5], max_tokens=5_000)),
    ("min_tokens above what fits", "sampling_params.min_tokens", lambda: without_max(min_tokens=5_000)),
    ("max_tokens 0", "sampling_params.max_tokens", lambda: tokens_request([5], max_tokens=0)),
    ("n 0", "sampling_params.n", lambda: tokens_request([5], n=0)),
    ("n 17", "sampling_params.n", lambda: tokens_request([5], n=17)),
    ("temperature", "sampling_params.temperature", lambda: tokens_request([5], temperature=11)),
    ("top_p", "sampling_params.top_p", lambda: tokens_request([5], top_p=0)),
    ("request id too long", "request_id", lambda: tokens_request([5], request_id="a" * 129)),
    ("partition too long", "cache_policy.partition", lambda: tokens_request([5], partition="a" * 257)),
]


def without_max(**fields: Any) -> pb.GenerateRequest:
    request = tokens_request([5], **fields)
    request.sampling_params.ClearField("max_tokens")
    return request


@pytest.mark.parametrize(("field", "make"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID])
async def test_invalid_requests(cluster: Cluster, field: str, make: Callable[[], pb.GenerateRequest]) -> None:
    unary = await refused(cluster.acme.generate(make()))
    streamed = await refused(cluster.acme.stream(make()).read())
    for error in (unary, streamed):
        assert error.code() is Code.INVALID_ARGUMENT
        assert detail_of(error, BadRequest).field_violations[0].field == field
    await cluster.nothing_left()


async def test_too_long_prompts_are_told_what_would_fit(cluster: Cluster) -> None:
    error = await refused(cluster.acme.generate(tokens_request([5] * (POOL_TOKENS + 1))))
    assert f"up to {POOL_TOKENS} tokens would fit" in error.details()
    assert (await cluster.acme.generate(tokens_request([5] * POOL_TOKENS, max_tokens=1))).usage.completion_tokens == 1
    error = await refused(cluster.acme.generate(tokens_request([5], max_tokens=5_000)))
    assert f"at most {POOL_TOKENS} per sample would fit" in error.details()
    fits = await cluster.acme.generate(tokens_request([5], max_tokens=POOL_TOKENS))
    assert fits.usage.completion_tokens == POOL_TOKENS


async def test_an_unknown_model_names_what_is_served(cluster: Cluster) -> None:
    error = await refused(cluster.acme.generate(tokens_request([5], model="gpt-9")))
    assert error.code() is Code.NOT_FOUND
    assert "served are: token-digest" in error.details()


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x02\xff\xfe"], ids=["no message", "no UTF-8"])
async def test_bytes_that_are_no_message_are_invalid(cluster: Cluster, message: bytes) -> None:
    call = cluster.channel.unary_unary("/stemcache.v1.InferenceService/Generate")
    error = await refused(call(message, timeout=10.0, metadata=cluster.acme.metadata))
    assert error.code() is Code.INVALID_ARGUMENT
    assert detail_of(error, BadRequest).field_violations[0].field == "request"


async def test_a_long_name_is_not_found_like_any_other(cluster: Cluster) -> None:
    name = "é" * 50_000
    assert (await refused(cluster.acme.generate(tokens_request([5], model=name)))).code() is Code.NOT_FOUND
    rotate = cluster.tenant_admin.RotateEpoch(admin_pb2.RotateEpochRequest(tenant=name), metadata=ADMIN_METADATA)
    assert (await refused(rotate)).code() is Code.NOT_FOUND


async def test_a_message_over_the_limit_is_refused(cluster: Cluster) -> None:
    error = await refused(cluster.acme.generate(tokens_request([5] * 60_000)))
    assert error.code() is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer sc-nobody-nothing"),),
        (("authorization", "Basic abc"),),
        (("x-api-key", "sc-nobody-nothing"),),
        (("authorization", "Bearer a"), ("x-api-key", "b")),
        (("authorization-bin", b"\x00"),),
    ],
)
async def test_bad_credentials(cluster: Cluster, metadata: tuple[tuple[str, Any], ...]) -> None:
    for method, request in (
        ("Generate", tokens_request([5])),
        ("CancelGeneration", pb.CancelGenerationRequest(request_id="a")),
        ("Tokenize", pb.TokenizeRequest(prompt=pb.Prompt(text="x"))),
        ("Detokenize", pb.DetokenizeRequest(token_ids=pb.TokenIds(packed=pack([5])))),
        ("ListModels", pb.ListModelsRequest()),
    ):
        error = await refused(getattr(cluster.acme.stub, method)(request, timeout=10.0, metadata=metadata))
        assert error.code() is Code.UNAUTHENTICATED
    call = cluster.acme.stub.GenerateStream(pb.GenerateStreamRequest(), timeout=10.0, metadata=metadata)
    assert (await refused(call.read())).code() is Code.UNAUTHENTICATED


async def test_the_other_header_works_too(cluster: Cluster) -> None:
    key = cluster.acme.metadata[0][1].removeprefix("Bearer ")
    metadata = (("x-api-key", key),)
    answer = await cluster.acme.stub.Generate(tokens_request([5]), timeout=10.0, metadata=metadata)
    assert answer.usage.completion_tokens == 8


async def test_a_revoked_key_opens_nothing(cluster: Cluster) -> None:
    await cluster.acme.generate(tokens_request([5]))
    keys = await cluster.tenant_admin.ListApiKeys(
        admin_pb2.ListApiKeysRequest(tenant="acme"), timeout=10.0, metadata=ADMIN_METADATA
    )
    revoke = admin_pb2.RevokeApiKeyRequest(key_id=keys.keys[0].key_id)
    await cluster.tenant_admin.RevokeApiKey(revoke, timeout=10.0, metadata=ADMIN_METADATA)
    error = await refused(cluster.acme.generate(tokens_request([5])))
    assert error.code() is Code.UNAUTHENTICATED
    unknown = (("authorization", "Bearer sc-nobody-nothing"),)
    other = await refused(cluster.acme.stub.Generate(tokens_request([5]), timeout=10.0, metadata=unknown))
    assert other.details() == error.details()
    assert (await cluster.globex.generate(tokens_request([5]))).usage.completion_tokens == 8


async def test_concurrency_of_a_tenant_is_limited_and_only_its_own(cluster: Cluster) -> None:
    streams = [cluster.acme.stream(tokens_request([5, at], max_tokens=400)) for at in range(2)]
    for stream in streams:
        await stream.read()
    error = await refused(cluster.acme.generate(tokens_request([5])))
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert detail_of(error, QuotaFailure).violations[0].subject == "concurrent requests"
    assert detail_of(error, RetryInfo).retry_delay.ToMilliseconds() > 0
    assert (await cluster.globex.generate(tokens_request([5]))).usage.completion_tokens == 8
    for stream in streams:
        stream.cancel()
    await eventually(lambda: cluster.router.table.num_running == 0)
    assert (await cluster.acme.generate(tokens_request([5]))).usage.completion_tokens == 8


async def test_calls_that_never_send_their_message_are_limited_and_only_its_own(cluster: Cluster) -> None:
    silent = cluster.channel.stream_unary("/stemcache.v1.InferenceService/ListModels")
    calls = [silent(metadata=cluster.globex.metadata) for _ in range(8)]
    await asyncio.gather(*(call.wait_for_connection() for call in calls))
    error = await refused(silent(metadata=cluster.globex.metadata, timeout=10.0))
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert (await cluster.acme.generate(tokens_request([5]))).usage.completion_tokens == 8
    for call in calls:
        call.cancel()
    await eventually_async(lambda: is_served(cluster.globex))


async def is_served(tenant: Tenant) -> bool:
    try:
        await tenant.stub.ListModels(pb.ListModelsRequest(), timeout=10.0, metadata=tenant.metadata)
    except grpc.aio.AioRpcError as error:
        if error.code() is not Code.RESOURCE_EXHAUSTED:
            raise
        return False
    return True


async def test_callers_without_a_key_take_no_places_of_tenants(cluster: Cluster) -> None:
    watch = health_pb2_grpc.HealthStub(cluster.channel).Watch
    calls = [watch(health_pb2.HealthCheckRequest()) for _ in range(MAX_OPEN_CALLS)]
    for call in calls:
        await call.read()
    error = await refused(watch(health_pb2.HealthCheckRequest(), timeout=10.0).read())
    assert error.code() is Code.UNAVAILABLE
    assert (await cluster.acme.generate(tokens_request([5]))).usage.completion_tokens == 8
    for call in calls:
        call.cancel()


async def test_a_call_without_the_admin_token_is_refused_before_its_message(cluster: Cluster) -> None:
    async with grpc.aio.insecure_channel(cluster.router.admin_address) as channel:
        silent = channel.stream_unary("/stemcache.admin.v1.TenantAdminService/ListTenants")
        assert (await refused(silent(timeout=10.0))).code() is Code.UNAUTHENTICATED


async def test_calls_of_a_tenant_are_limited_and_only_its_own(cluster: Cluster) -> None:
    request = tokens_request([5], request_id="r", max_tokens=1_000)
    attached = [cluster.acme.stream(request) for _ in range(8)]
    for call in attached:
        await call.read()
    listing = cluster.acme.stub.ListModels(pb.ListModelsRequest(), timeout=10.0, metadata=cluster.acme.metadata)
    error = await refused(listing)
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert detail_of(error, QuotaFailure).violations[0].subject == "concurrent calls"
    assert (await cluster.globex.generate(tokens_request([5]))).usage.completion_tokens == 8
    assert await cluster.globex.cancel("r") is False
    for call in attached:
        call.cancel()
