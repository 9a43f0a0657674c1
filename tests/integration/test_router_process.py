"""The router as a process, and what any gRPC client may expect of its ports: reflection, health, `buf curl`."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from stemcache.v1 import inference_pb2 as pb

from cache_store.clock import SystemClock
from services.client import AsyncStemcacheClient, Delta, GenerationRequest, Sampling, Tokens
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.router.readiness import SERVICE
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_METADATA,
    MASTER,
    MODEL,
    Cluster,
    Tenant,
    eventually_async,
    new_tenant,
    router_settings,
    running,
    running_cluster,
    running_workers_of,
    tokens_request,
)

PROMPT = list(range(100, 180))
Code = grpc.StatusCode
ROOT = Path(__file__).parents[2]
BUF = shutil.which("buf", path=str(Path(sys.executable).parent))
STATES = health_pb2.HealthCheckResponse


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@pytest.fixture
async def cluster(urls: RoleUrls, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(urls, tmp_path) as made:
        yield made


def environment(urls: RoleUrls, folder: Path, **changes: str) -> dict[str, str]:
    settings = router_settings(urls, folder)
    return {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
        "STEMCACHE_REDIS_URL": urls.router,
        "STEMCACHE_CONTROL_REDIS_URL": urls.operator,
        "STEMCACHE_MASTER_KEY": MASTER.raw.hex(),
        "STEMCACHE_ADMIN_TOKEN_FILE": str(settings.admin_token_file),
        "STEMCACHE_LISTEN": settings.listen,
        "STEMCACHE_ADMIN_LISTEN": settings.admin_listen,
        "STEMCACHE_MODELS": f"{MODEL}={settings.models[MODEL]}",
        "STEMCACHE_DATA_DIR": str(folder),
    } | changes


@asynccontextmanager
async def router_process(env: dict[str, str]) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.router", cwd=ROOT, stdout=PIPE, stderr=PIPE, env=env
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def listening(process: Process) -> dict[str, Any]:
    """The event that names the addresses."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "router.listening":
            return event
    raise AssertionError("the router ended before it listened")


async def test_sigterm_drains_and_ends_with_0(urls: RoleUrls, tmp_path: Path) -> None:
    key = await new_tenant(urls, "acme")
    async with (
        running_workers_of(urls, ({"digest_step_s": 0.02},)),
        router_process(environment(urls, tmp_path)) as process,
    ):
        addresses = await listening(process)
        async with grpc.aio.insecure_channel(addresses["address"]) as channel:
            acme = Tenant("acme", key, channel)
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            await until(watch, STATES.SERVING)
            stream = acme.stream(tokens_request(PROMPT, max_tokens=100))
            first = await stream.read()
            process.send_signal(signal.SIGTERM)
            await until(watch, STATES.NOT_SERVING)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == STATES.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await acme.generate(tokens_request(PROMPT))
            assert error.value.code() is Code.UNAVAILABLE
            events = [first]
            while (event := await stream.read()) is not grpc.aio.EOF:
                events.append(event)
            assert events[-1].finished.usage.completion_tokens == 100
        assert await asyncio.wait_for(process.wait(), 20.0) == 0


async def test_callers_of_a_draining_router_go_to_the_next_one(urls: RoleUrls, tmp_path: Path) -> None:
    """While one stream holds the drain up, a client that is connected has its further calls served elsewhere."""
    async with running_cluster(urls, tmp_path / "one", ({"digest_step_s": 0.05},), drain_s=20.0) as leaving:
        settings = router_settings(urls, tmp_path / "two")
        async with running(settings, SystemClock()) as staying:
            await eventually_async(lambda: serves(staying.address))
            addresses = f"{leaving.router.address},{staying.address}"
            long = leaving.acme.stream(tokens_request(PROMPT, max_tokens=160))
            await long.read()
            async with AsyncStemcacheClient(addresses, leaving.acme.key) as client:
                request = GenerationRequest(Tokens(tuple(PROMPT)), Sampling(max_tokens=2, ignore_eos=True))
                await client.generate(request)
                leaving.router.stop()
                for _ in range(4):
                    assert (await client.generate(request)).usage.completion_tokens == 2
                    await asyncio.sleep(0.5)
                assert leaving.router.table.num_running == 1, "the stream ended before it could hold anything up"
            await read_all(long)


async def test_a_stream_that_outlasts_the_drain_goes_on_at_the_next_one(urls: RoleUrls, tmp_path: Path) -> None:
    """As it does where its router is killed."""
    settings = router_settings(urls, tmp_path / "two")
    async with (
        running_cluster(urls, tmp_path / "one", ({"digest_step_s": 0.01},), drain_s=0.2) as leaving,
        running(settings, SystemClock()) as staying,
    ):
        await eventually_async(lambda: serves(staying.address))
        addresses = f"{leaving.router.address},{staying.address}"
        request = GenerationRequest(Tokens(tuple(PROMPT)), Sampling(max_tokens=200, ignore_eos=True))
        told: list[int] = []
        async with AsyncStemcacheClient(addresses, leaving.acme.key) as client:
            async for event in client.stream(request):
                if isinstance(event, Delta):
                    told += event.token_ids
                    leaving.router.stop()
            whole = await client.generate(request)
        assert tuple(told) == whole.completions[0].token_ids


async def serves(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5.0)
    return bool(response.status == STATES.SERVING)


async def until(watch: Any, status: int) -> None:
    while (await watch.read()).status != status:
        pass


async def test_a_drain_that_takes_too_long_gives_back_what_was_made(urls: RoleUrls, tmp_path: Path) -> None:
    async with running_cluster(urls, tmp_path, ({"digest_step_s": 0.01},), drain_s=0.2) as cluster:
        stream = cluster.acme.stream(tokens_request(PROMPT, max_tokens=4_000))
        await stream.read()
        cluster.router.stop()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await read_all(stream)
        assert error.value.code() is Code.ABORTED


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"STEMCACHE_REDIS_URL": ""}, "STEMCACHE_REDIS_URL is not set"),
        ({"STEMCACHE_MASTER_KEY": "abc"}, "64 hex digits"),
        ({"STEMCACHE_MODELS": "m=/tmp"}, "/tmp has no tokenizer.json"),
    ],
)
async def test_bad_settings_end_the_process_with_a_sentence(
    urls: RoleUrls, tmp_path: Path, changes: dict[str, str], expected: str
) -> None:
    async with router_process(environment(urls, tmp_path, **changes)) as process:
        _, stderr = await process.communicate()
    assert process.returncode == 2
    assert expected in stderr.decode()
    assert "Traceback" not in stderr.decode()


async def test_a_port_that_is_taken_ends_the_process_with_a_sentence(urls: RoleUrls, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        async with router_process(environment(urls, tmp_path, STEMCACHE_LISTEN=taken)) as process:
            _, stderr = await process.communicate()
    assert process.returncode == 2
    assert f"cannot listen on {taken}" in stderr.decode()


async def services_of(channel: grpc.aio.Channel, metadata: Any = ()) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata, timeout=10.0
    )
    answer = await call.read()
    return {service.name for service in answer.list_services_response.service}


async def test_reflection_and_health_are_on(cluster: Cluster) -> None:
    assert await services_of(cluster.channel) == {
        "stemcache.v1.CacheService",
        "stemcache.v1.InferenceService",
        "stemcache.v1.UsageService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    health = health_pb2_grpc.HealthStub(cluster.channel)

    async def ready() -> bool:
        return bool((await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))).status == STATES.SERVING)

    await eventually_async(ready)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == STATES.SERVING
    await cluster.workers[0].drain(1.0)

    async def not_ready() -> bool:
        return not await ready()

    await eventually_async(not_ready)


async def test_the_admin_port_has_both_services_for_the_operator_only(cluster: Cluster) -> None:
    async with grpc.aio.insecure_channel(cluster.router.admin_address) as channel:
        assert await services_of(channel, ADMIN_METADATA) == {
            "stemcache.admin.v1.TenantAdminService",
            "stemcache.admin.v1.ClusterService",
            "stemcache.admin.v1.AdapterService",
            "stemcache.admin.v1.UsageService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await services_of(channel)
        assert error.value.code() is Code.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.acme.stub.ListModels(pb.ListModelsRequest(), metadata=ADMIN_METADATA, timeout=10.0)
    assert error.value.code() is Code.UNAUTHENTICATED


async def buf_curl(cluster: Cluster, method: str, body: dict[str, Any]) -> list[Any]:
    """What buf prints, which learns the messages by reflection."""
    assert BUF is not None, "buf stands beside the interpreter (see pyproject.toml, dev)"
    process = await asyncio.create_subprocess_exec(
        BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge",
        "--header", f"authorization: {cluster.acme.metadata[0][1]}", "--data", json.dumps(body),
        f"http://{cluster.router.address}/stemcache.v1.InferenceService/{method}",
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return documents(stdout.decode())


def documents(text: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        found.append(document)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


async def test_buf_curl_generates_and_streams(cluster: Cluster) -> None:
    request = {"prompt": {"text": "hello"}, "samplingParams": {"maxTokens": 5, "ignoreEos": True}}
    (answer,) = await buf_curl(cluster, "Generate", request)
    assert answer["usage"]["completionTokens"] == 5
    events = await buf_curl(cluster, "GenerateStream", {"request": request})
    assert "started" in events[0]
    assert "finished" in events[-1]
    assert "".join(event["delta"].get("text", "") for event in events[1:-1]) == answer["completions"][0]["text"]
