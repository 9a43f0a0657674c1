"""The two clients that are compared: a bare one, and the load generator's driver. Each sends the same requests."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import grpc
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1.inference_pb2_grpc import InferenceServiceStub

from cache_store.tokens import PackedTokens, pack
from services.loadtest.arrivals import Arrival, Bounds, ClosedLoop, OpenLoop
from services.loadtest.driver import Driver, TenantLoad
from services.loadtest.live import Live
from services.loadtest.records import RequestRow
from services.loadtest.sessions import Session, Turn, Workload
from services.loadtest.stemcache_target import CachePolicy, StemcacheTarget
from services.loadtest.token_source import stable_rng

PROMPT = pack(range(100, 164))
CONCURRENCY = 32
DEADLINE_S = 30.0
_METADATA = (("authorization", "Bearer sc-bench"),)


async def bare(address: str, num_calls: int, max_tokens: int) -> float:
    """Requests per second of grpc.aio and the generated stub, with nothing around them but the first token's time."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = InferenceServiceStub(channel)
        left = iter(range(num_calls))
        first_s: list[float] = []

        async def caller() -> None:
            for number in left:
                began_s, first = time.perf_counter(), 0.0
                async for event in stub.GenerateStream(
                    _message(number, max_tokens), timeout=DEADLINE_S, metadata=_METADATA
                ):
                    if not first and event.HasField("delta"):
                        first = time.perf_counter() - began_s
                first_s.append(first)

        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENCY):
                tasks.create_task(caller())
        return num_calls / (time.perf_counter() - began_s)


def _message(number: int, max_tokens: int) -> pb.GenerateStreamRequest:
    return pb.GenerateStreamRequest(
        request=pb.GenerateRequest(
            request_id=f"{number:032x}",
            prompt=pb.Prompt(token_ids=pb.TokenIds(packed=PROMPT)),
            sampling_params=pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            cache_policy=pb.CachePolicy(partition="bench"),
        )
    )


async def ours(address: str, num_calls: int, max_tokens: int) -> float:
    """Requests per second of the driver in a closed loop of as many callers."""
    rows = await _drive(address, num_calls, max_tokens, ClosedLoop(CONCURRENCY))
    return num_calls / max(row.end_s for row in rows)


async def open_loop(address: str, num_calls: int, max_tokens: int, rate: float) -> list[RequestRow]:
    """Rows of a Poisson process at that rate."""
    return await _drive(address, num_calls, max_tokens, OpenLoop(rate))


async def _drive(address: str, num_calls: int, max_tokens: int, arrival: Arrival) -> list[RequestRow]:
    target = StemcacheTarget(address, "sc-bench", CachePolicy("", "bench"), DEADLINE_S)
    turn = (Turn((PackedTokens(PROMPT),), max_tokens),)
    sessions = (Session(f"r{number}", turn) for number in itertools.count())
    load = TenantLoad(
        "bench", 1.0, Workload("bench", sessions), arrival, Bounds(num_calls, None), target, stable_rng("bench")
    )
    driver = Driver([load], 0.0, Live())
    try:
        await driver.run(asyncio.Event())
    finally:
        await target.close()
    rows = driver.rows([None] * num_calls)
    assert all(row.completed for row in rows), rows[-1].error
    return rows
