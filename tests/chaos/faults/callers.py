"""Faults of callers: those who take nothing of their answers, and those who cancel all the time."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
import psutil
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import inference_pb2_grpc

from cache_store.tokens import unpack
from services.client.channel import channel_options
from tests.chaos.cluster import Cluster, Layout, running_cluster, until
from tests.chaos.faults.course import Extent, until_flowing
from tests.chaos.load import Prompt, Shape, digest_oracle
from tests.chaos.outcome import Outcome
from tests.support.raw_http2 import unread_call
from tests.support.router_host import tokens_request

STREAM = "/stemcache.v1.InferenceService/GenerateStream"
NUM_UNREAD = 60
MAX_GROWTH_BYTES = 64 << 20

NUM_CANCELS = {Extent.SHORT: 2_000, Extent.WHOLE: 100_000}
NUM_AT_ONCE = 96
NUM_PROMPTS = 300
MAX_TOKENS = 12
DELAYS_S = (0.0, 0.005, 0.05, 0.4)
"""A cancel comes at a random moment up to one of these: while it is sent, planned, routed, computed, answered."""


async def slow_readers(folder: Path, extent: Extent) -> Outcome:
    """Streams of one tenant whose answers nobody takes, beside others' that are read."""
    outcome = Outcome("slow readers", "streams that nobody read")
    environment = {"STEMCACHE_WRITE_S": "3"}
    layout = Layout(workers=("w0", "w1"), routers=("r0",), router_environment=environment)
    async with running_cluster(folder, layout) as cluster, AsyncExitStack() as stack:
        router = cluster.routers["r0"]
        load = cluster.load(Shape(num_streams=8))
        async with load.running():
            await until_flowing(load, 12)
            process = psutil.Process(router.child.pid)
            before_bytes, num_before = process.memory_info().rss, (await router.status()).running_requests
            hit_s = time.time()
            metadata = [("authorization", f"Bearer {cluster.keys['acme']}")]
            for at in range(NUM_UNREAD):
                request = tokens_request(range(1 + at, 400 + at), max_tokens=2_000)
                message = pb.GenerateStreamRequest(request=request).SerializeToString()
                await stack.enter_async_context(unread_call(router.address, STREAM, message, metadata))
            await asyncio.sleep(1.0)
            outcome.in_phase = max(0, (await router.status()).running_requests - num_before)
            await until(lambda: _runs_at_most(cluster, 2 * load.shape.num_streams), 60.0, "unread streams are ended")
            outcome.recovery_s, outcome.recovered_when = time.time() - hit_s, "the router had ended all of them"
            growth_bytes = process.memory_info().rss - before_bytes
            outcome.claim(f"the router grew by {growth_bytes >> 20} MiB", growth_bytes < MAX_GROWTH_BYTES)
        beside = [each for each in load.streams if each.sent_s > hit_s]
        outcome.claim(f"{len(beside)} streams beside them ended well", beside and not any(s.error for s in beside))
        outcome.count(load)
        await cluster.until_idle()
        outcome.claim("workers hold nothing", True)
    return outcome


async def _runs_at_most(cluster: Cluster, num_requests: int) -> bool:
    return (await cluster.routers["r0"].status()).running_requests <= num_requests


@dataclass
class _Storm:
    """Counts of what was done and seen."""

    num_sent: int = 0
    num_cancelled: int = 0
    """While they had not ended."""
    num_by_call: int = 0
    """Of them through CancelGeneration, from another call."""
    num_whole: int = 0
    """That were read to their end."""
    num_wrong: int = 0
    errors: dict[str, int] = field(default_factory=dict)


async def cancel_storm(folder: Path, extent: Extent) -> Outcome:
    """Requests that are cancelled at random moments, some by another call, beside some that are not."""
    outcome = Outcome("cancel storm", "cancelled before their end")
    told = {"pool": 1_024, "digest_step_s": 0.004, "digest_token_s": 0.00002}
    rng, storm = random.Random(7), _Storm()
    prompts = _prompts(rng)
    async with running_cluster(folder, Layout(workers=("w0", "w1"), worker_told=told)) as cluster:
        async with AsyncExitStack() as stack:
            tasks = []
            for tenant, router in zip(cluster.keys, cluster.routers.values(), strict=True):
                channel = grpc.aio.insecure_channel(router.address, options=channel_options())
                await stack.enter_async_context(channel)
                caller = _StormCaller(channel, cluster.keys[tenant], storm, rng, NUM_CANCELS[extent])
                tasks += [asyncio.create_task(caller.repeat(prompts)) for _ in range(NUM_AT_ONCE // 2)]
            await asyncio.gather(*tasks)
        over_s = time.time()
        await cluster.until_idle(60.0)
        outcome.claim("no worker has a request, none holds a block", True)
        for router in cluster.routers.values():
            await until(lambda router=router: _is_idle(router), 30.0, "a router has no request")
        outcome.recovery_s, outcome.recovered_when = time.time() - over_s, "nothing was held any more"
        load = cluster.load(Shape(num_streams=10, max_tokens=8), seed=3)
        async with load.running():
            await asyncio.sleep(3.0)
        outcome.count(load)
    outcome.sent, outcome.in_phase = outcome.sent + storm.num_sent, storm.num_cancelled
    outcome.wrong_tokens += storm.num_wrong
    outcome.claim(f"{storm.num_cancelled} were cancelled, {storm.num_by_call} of them by another call", True)
    outcome.claim(f"{storm.num_whole} beside them were read to their end", storm.num_whole)
    outcome.claim(f"none ended with an error of its own: {storm.errors or 'none'}", not storm.errors)
    return outcome


async def _is_idle(router: Any) -> bool:
    return bool((await router.status()).running_requests == 0)


class _StormCaller:
    """One tenant's calls through one router."""

    def __init__(
        self, channel: grpc.aio.Channel, key: str, storm: _Storm, rng: random.Random, num_cancels: int
    ) -> None:
        self._stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {key}"),)
        self._storm = storm
        self._rng = rng
        self._num_cancels = num_cancels

    async def repeat(self, prompts: list[Prompt]) -> None:
        """Until there were enough cancels."""
        while self._storm.num_cancelled < self._num_cancels:
            self._storm.num_sent += 1
            await self._once(f"s{self._storm.num_sent}", self._rng.choice(prompts))

    async def _once(self, request_id: str, prompt: Prompt) -> None:
        storm, tokens = self._storm, []  # type: ignore[var-annotated]
        request = tokens_request(
            prompt, max_tokens=MAX_TOKENS, request_id=request_id if self._rng.random() < 0.5 else ""
        )
        call = self._stub.GenerateStream(
            pb.GenerateStreamRequest(request=request), timeout=120.0, metadata=self._metadata
        )
        reading = asyncio.create_task(_read(call, tokens))
        if self._rng.random() < 0.06:
            await self._settle(reading)
            storm.num_whole += len(tokens) == MAX_TOKENS
        else:
            await asyncio.sleep(self._rng.random() * self._rng.choice(DELAYS_S))
            if request.request_id and self._rng.random() < 0.3:
                await self._cancel_by_call(request_id)
                await self._settle(reading)
            elif not reading.done():
                storm.num_cancelled += 1
                if self._rng.random() < 0.5:
                    call.cancel()
                reading.cancel()
                await self._settle(reading)
            else:
                await self._settle(reading)
        storm.num_wrong += _num_wrong(prompt, tokens)

    async def _cancel_by_call(self, request_id: str) -> None:
        message = pb.CancelGenerationRequest(request_id=request_id)
        response = await self._stub.CancelGeneration(message, timeout=60.0, metadata=self._metadata)
        self._storm.num_cancelled += response.was_running
        self._storm.num_by_call += response.was_running

    async def _settle(self, reading: asyncio.Task[None]) -> None:
        try:
            await reading
        except asyncio.CancelledError:
            pass
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                name = f"{error.code().name}: {error.details()}"
                self._storm.errors[name] = self._storm.errors.get(name, 0) + 1


async def _read(call: Any, tokens: list[int]) -> None:
    try:
        async for event in call:
            if event.HasField("delta"):
                tokens += unpack(event.delta.token_ids.packed)
    finally:
        call.cancel()


def _prompts(rng: random.Random) -> list[Prompt]:
    """Some share their beginnings, lengths are all kinds."""
    beginnings = [tuple(rng.randrange(1, 32_000) for _ in range(160)) for _ in range(20)]
    return [
        rng.choice(beginnings)[: rng.randrange(1, 160)]
        + tuple(rng.randrange(1, 32_000) for _ in range(rng.randrange(1, 90)))
        for _ in range(NUM_PROMPTS)
    ]


@lru_cache(maxsize=NUM_PROMPTS)
def _expected(prompt: Prompt) -> tuple[int, ...]:
    return digest_oracle(prompt, MAX_TOKENS)


def _num_wrong(prompt: Prompt, tokens: list[int]) -> int:
    expected = _expected(prompt)
    return sum(told != right for told, right in zip(tokens, expected, strict=False)) + max(0, len(tokens) - MAX_TOKENS)
