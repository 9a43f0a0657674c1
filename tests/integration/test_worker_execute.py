"""A worker as a router sees it: real gRPC on loopback, real engine, the token-digest runner."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from stemcache.v1 import inference_pb2
from stemcache.worker.v1 import worker_pb2

from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION
from tests.support.domains import make_domain
from tests.support.memory_stores import MemoryStores
from tests.support.worker_host import WorkerClient, client_of, digest_config, digest_domain, running_workers
from worker.config import NumBlocks
from worker.engine import Engine
from worker.host import SERVICE, WorkerHost

PROMPT = list(range(1, 101))
BLOCK_SIZE = 16
ACME, GLOBEX = digest_domain("acme"), digest_domain("globex")

Message = worker_pb2.ExecuteRequest


@pytest.fixture
async def host() -> AsyncIterator[WorkerHost]:
    async with running_workers([digest_config()], MemoryStores().connect) as [host]:
        yield host


@pytest.fixture
async def client(host: WorkerHost) -> AsyncIterator[WorkerClient]:
    async with client_of(host) as client:
        yield client


async def status_of(client: WorkerClient, message: Message, timeout_s: float = 30.0) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.run(message, timeout_s)
    return raised.value


async def num_held(host: WorkerHost) -> int:
    """Blocks that requests hold; checks the engine's invariants on the way."""

    def read(engine: Engine) -> int:
        engine.check_invariants()
        return engine.num_held_blocks

    return await host.thread.call(read, 10)


async def test_a_request_runs_to_its_end(client: WorkerClient) -> None:
    execution = await client.execute(ACME, PROMPT, max_tokens=20)
    assert execution.cached_tokens == 0
    assert len(execution.tokens[0]) == 20
    assert execution.finish_reasons == {0: inference_pb2.FINISH_REASON_LENGTH}
    assert execution.finished is not None


async def test_the_same_tenant_hits_and_the_other_one_does_not(client: WorkerClient) -> None:
    cold = await client.execute(ACME, PROMPT)
    other_cold = await client.execute(GLOBEX, PROMPT)
    warm = await client.execute(ACME, PROMPT)
    other_warm = await client.execute(GLOBEX, PROMPT)
    assert (cold.cached_tokens, other_cold.cached_tokens) == (0, 0)
    assert warm.cached_tokens >= len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE
    assert other_warm.cached_tokens == warm.cached_tokens
    assert cold.tokens == warm.tokens == other_cold.tokens == other_warm.tokens


@pytest.mark.parametrize(
    "other", [digest_domain(partition="bob"), digest_domain(epoch="e2")], ids=["partition", "epoch"]
)
async def test_another_partition_or_epoch_of_the_tenant_does_not_hit(client: WorkerClient, other: object) -> None:
    await client.execute(ACME, PROMPT)
    assert (await client.execute(other, PROMPT)).cached_tokens == 0  # type: ignore[arg-type]
    assert (await client.execute(ACME, PROMPT)).cached_tokens > 0


async def test_samples_are_told_apart(client: WorkerClient) -> None:
    execution = await client.execute(ACME, PROMPT, n=3, temperature=1.0, seed=7, max_tokens=12)
    assert sorted(execution.tokens) == [0, 1, 2]
    assert {len(tokens) for tokens in execution.tokens.values()} == {12}
    assert len({tuple(tokens) for tokens in execution.tokens.values()}) == 3


async def test_tokens_that_are_ready_together_travel_together() -> None:
    """A reader that pauses finds several tokens in one message, and the engine did not wait for it."""
    async with running_workers([digest_config()], MemoryStores().connect) as [host], client_of(host) as client:
        call = client.call(client.message(ACME, PROMPT, max_tokens=2_000))
        assert (await call.read()).WhichOneof("event") == "started"
        await until(lambda: host.thread.load.running_requests == 0)
        num_messages = 0
        while await call.read() is not grpc.aio.EOF:
            num_messages += 1
        assert num_messages < 2_000


async def test_a_reader_that_never_reads_holds_back_nobody() -> None:
    """Its answer waits in memory, bounded by its own max_tokens; the engine ends it, and others run meanwhile."""
    config = digest_config(pool=NumBlocks(2_048), max_num_sequences=16)
    async with running_workers([config], MemoryStores().connect) as [host], client_of(host) as client:
        lazy = client.call(client.message(ACME, PROMPT, max_tokens=8_000), timeout_s=120)
        for number in range(3):
            assert (await client.execute(GLOBEX, [number + 1, *PROMPT])).finished is not None
        await until(lambda: host.thread.load.running_requests == 0, timeout_s=100)
        assert await num_held(host) == 0, "an answer that nobody reads holds no blocks"
        num_tokens = 0
        while (message := await lazy.read()) is not grpc.aio.EOF:
            assert isinstance(message, worker_pb2.ExecuteResponse)
            num_tokens += len(message.tokens.packed) // 4
        assert num_tokens == 8_000


async def test_an_old_protocol_is_refused_by_name(client: WorkerClient) -> None:
    message = client.message(ACME, PROMPT)
    message.protocol_version = PROTOCOL_VERSION + 1
    error = await status_of(client, message)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"version {PROTOCOL_VERSION + 1}" in error.details()
    assert f"version {PROTOCOL_VERSION}" in error.details()


def _wrong_mac(client: WorkerClient) -> bytes:
    token = bytearray(client.token(ACME))
    token[-1] ^= 1
    return bytes(token)


def _forged_tenant(client: WorkerClient) -> bytes:
    return client.token(ACME).replace(b"acme", b"bcme")


TOKENS: dict[str, Callable[[WorkerClient], bytes]] = {
    "wrong MAC": _wrong_mac,
    "forged tenant": _forged_tenant,
    "expired": lambda client: client.token(ACME, lifetime_s=-1.0),
    "other incarnation": lambda client: client.token(ACME, incarnation=Incarnation("0" * 32)),
    "empty": lambda client: b"",
    "noise": lambda client: b"\xff" * 200,
}


@pytest.mark.parametrize("name", TOKENS)
async def test_a_token_that_does_not_fit_opens_nothing(client: WorkerClient, name: str) -> None:
    message = client.message(ACME, PROMPT)
    message.request_token = TOKENS[name](client)
    assert (await status_of(client, message)).code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await client.execute(ACME, PROMPT)).cached_tokens == 0, "the refused request left something behind"


async def test_a_token_of_another_cluster_opens_nothing(host: WorkerHost) -> None:
    async with WorkerClient(host.address, host.incarnation, cluster_key=b"x" * 32) as stranger:
        error = await status_of(stranger, stranger.message(ACME, PROMPT))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_another_kv_format_is_refused_by_name(client: WorkerClient) -> None:
    error = await status_of(client, client.message(make_domain("acme"), PROMPT))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert make_domain("acme").kv_format.hex() in error.details()
    assert ACME.kv_format.hex() in error.details()


BAD_FIELDS: dict[str, tuple[str, dict[str, object]]] = {
    "temperature below 0": ("sampling.temperature", {"temperature": -0.1}),
    "temperature too high": ("sampling.temperature", {"temperature": 10.5}),
    "temperature NaN": ("sampling.temperature", {"temperature": float("nan")}),
    "temperature infinite": ("sampling.temperature", {"temperature": float("inf")}),
    "top_p 0": ("sampling.top_p", {"top_p": 0.0}),
    "top_p above 1": ("sampling.top_p", {"top_p": 1.1}),
    "top_p NaN": ("sampling.top_p", {"top_p": float("nan")}),
    "max_tokens 0": ("sampling.max_tokens", {"max_tokens": 0}),
    "min above max": ("sampling.min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    "n 0": ("sampling.n", {"n": 0}),
    "n 17": ("sampling.n", {"n": 17}),
    "stop id outside": ("sampling.stop_token_ids", {"stop_token_ids": [32_000]}),
    "too many stop ids": ("sampling.stop_token_ids", {"stop_token_ids": range(129)}),
    "longer than the model": ("sampling.max_tokens", {"max_tokens": 8_193}),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
async def test_bad_sampling_is_refused_by_field(client: WorkerClient, name: str) -> None:
    field, sampling = BAD_FIELDS[name]
    await assert_refused(client, client.message(ACME, PROMPT, **sampling), field)


BAD_PROMPTS: dict[str, bytes] = {
    "empty": b"",
    "half a token": b"\1\0\0\0\2",
    "outside the vocabulary": (32_000).to_bytes(4, "little"),
    "longer than the model": b"\1\0\0\0" * 8_192,
    "far longer than the model": b"\1\0\0\0" * 20_000,
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
async def test_a_bad_prompt_is_refused_by_field(client: WorkerClient, name: str) -> None:
    message = client.message(ACME, PROMPT)
    message.prompt = BAD_PROMPTS[name]
    await assert_refused(client, message, "prompt")


async def test_an_unknown_cache_mode_is_refused(client: WorkerClient) -> None:
    message = client.message(ACME, PROMPT)
    message.cache_mode = 9  # type: ignore[assignment]
    await assert_refused(client, message, "cache_mode")


async def test_a_request_larger_than_the_pool_is_refused_with_the_numbers() -> None:
    config = digest_config(pool=NumBlocks(4))
    async with running_workers([config], MemoryStores().connect) as [host], client_of(host) as client:
        error = await status_of(client, client.message(ACME, PROMPT))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "4" in error.details()


async def assert_refused(client: WorkerClient, message: Message, field: str) -> None:
    error = await status_of(client, message)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = error_details_pb2.BadRequest()
    assert rpc_status.from_call(error).details[0].Unpack(details)  # type: ignore[arg-type,union-attr]
    assert details.field_violations[0].field == field
    assert (await client.execute(ACME, PROMPT[:20])).finished is not None


async def test_a_message_over_the_limit_is_refused_and_others_go_on(client: WorkerClient) -> None:
    message = client.message(ACME, PROMPT)
    message.prompt = b"\1\0\0\0" * 200_000
    assert (await status_of(client, message)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await client.execute(ACME, PROMPT)).finished is not None


async def test_the_deadline_of_a_call_ends_its_request() -> None:
    config = digest_config(digest_step_s=0.02)
    async with running_workers([config], MemoryStores().connect) as [host], client_of(host) as client:
        error = await status_of(client, client.message(ACME, PROMPT, max_tokens=4_000), timeout_s=0.3)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: host.thread.num_open == 0)
        assert await num_held(host) == 0


async def test_a_storm_of_cancels_leaves_nothing_held() -> None:
    """Calls cancelled on the way, queued, in prefill, in decode and preempted: nothing is held afterwards."""
    config = digest_config(pool=NumBlocks(96), digest_step_s=0.001, token_budget=64, max_num_sequences=8)
    chance = random.Random(5)
    async with running_workers([config], MemoryStores().connect) as [host], client_of(host) as client:

        async def run_and_cancel(number: int) -> int:
            """Messages that came before the cancel."""
            prompt = [chance.randrange(4) + 1, *PROMPT]
            await asyncio.sleep(chance.random() * 0.3)
            call = client.call(client.message((ACME, GLOBEX)[number % 2], prompt, max_tokens=400, n=1 + number % 3))
            asyncio.get_running_loop().call_later(chance.random() * 0.2, call.cancel)
            num_messages = 0
            with suppress(asyncio.CancelledError):
                while await call.read() is not grpc.aio.EOF:
                    num_messages += 1
            return num_messages

        counts = await asyncio.gather(*(run_and_cancel(number) for number in range(120)))
        await until(lambda: host.thread.num_open == 0)
        assert await num_held(host) == 0
        assert min(counts) == 0, "some were cancelled before they started"
        assert max(counts) > 5, "some were cancelled in the middle"
        assert len((await client.execute(ACME, PROMPT, max_tokens=8)).tokens[0]) == 8


async def test_a_lost_connection_ends_its_requests() -> None:
    config = digest_config(digest_step_s=0.005)
    async with running_workers([config], MemoryStores().connect) as [host]:
        client = client_of(host)
        call = client.call(client.message(ACME, PROMPT, max_tokens=4_000))
        await call.read()
        await client.channel.close(grace=None)
        await until(lambda: host.thread.num_open == 0)
        assert await num_held(host) == 0


async def test_a_full_queue_is_refused_with_a_time_to_come_again() -> None:
    config = digest_config(max_waiting=1, max_num_sequences=1, digest_step_s=0.01)
    async with running_workers([config], MemoryStores().connect) as [host], client_of(host) as client:
        calls = [client.call(client.message(ACME, [number, *PROMPT], max_tokens=1_000)) for number in range(1, 5)]
        await until(lambda: sum(call.done() for call in calls) >= 1)
        refused = next(call for call in calls if call.done())
        assert await refused.code() is grpc.StatusCode.UNAVAILABLE
        for call in calls:
            call.cancel()


async def test_a_draining_worker_refuses_new_requests_and_ends_the_running_ones() -> None:
    config = digest_config(digest_step_s=0.005)
    async with running_workers([config], MemoryStores().connect) as [host], client_of(host) as client:
        running = asyncio.create_task(client.execute(ACME, PROMPT, max_tokens=60))
        await until(lambda: host.thread.num_open == 1)
        draining = asyncio.create_task(host.drain(30))
        await asyncio.sleep(0)
        error = await status_of(client, client.message(ACME, PROMPT))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        health = await health_pb2_grpc.HealthStub(client.channel).Check(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=5
        )
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await draining
        assert len((await running).tokens[0]) == 60


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits for `condition`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true"
        await asyncio.sleep(0.005)
