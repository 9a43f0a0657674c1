"""The three ways to one worker: straight, over one plain hop, and over the router. Each asks for the same work.

A straight call carries what the router would have made of it: a signed token and the packed prompt.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import inference_pb2_grpc
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from cache_store.request_token import RequestClaims, sign
from cache_store.tokens import PackedTokens
from services.tenants.directory import KnownTenant
from tests.bench.router.processes import Listening

DEADLINE_S = 30.0
_TOKEN_S = 600.0
STRAIGHT, HOP, ROUTER = "straight to the worker", "one plain grpc.aio hop", "stemcache's router"


@dataclass(frozen=True, slots=True)
class Side:
    """A way, and the process in between whose processor time counts."""

    name: str
    call: Callable[[], Awaitable[int]]
    """Tokens that were cached."""
    between: Listening | None
    min_cached: int
    """A call with fewer tokens cached is not what is measured."""


class Messages:
    """What is asked of the worker without the router: signed ahead, one for each call."""

    def __init__(
        self, worker: WorkerRecord, known: KnownTenant, cluster_key: bytes, prompts: Sequence[PackedTokens], number: int
    ) -> None:
        domain = known.domain("", worker.model, worker.kv_format)
        self._made = []
        for prompt in itertools.islice(itertools.cycle(prompts), number):
            claims = RequestClaims(
                domain=domain,
                request_id=uuid.uuid4().hex,
                incarnation=worker.incarnation,
                expires_unix_s=time.time() + _TOKEN_S,
                fence_order=known.tenant.fence.order,
                control_generation=known.generation,
            )
            self._made.append(
                worker_pb2.ExecuteRequest(
                    protocol_version=PROTOCOL_VERSION,
                    request_token=sign(cluster_key, claims),
                    prompt=prompt,
                    sampling=worker_pb2.TokenSampling(top_p=1.0, max_tokens=1, n=1),
                    cache_mode=pb.CachePolicy.MODE_READ_WRITE,
                )
            )
        self._next = itertools.count()

    def next(self) -> worker_pb2.ExecuteRequest:
        """Another one; they come again when all were used, which a worker takes."""
        return self._made[next(self._next) % len(self._made)]


def executing(
    name: str, channel: grpc.aio.Channel, messages: Messages, between: Listening | None, min_cached: int
) -> Side:
    """A way on which the worker's own method is called."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)

    async def call() -> int:
        cached = 0
        async for message in stub.Execute(messages.next(), timeout=DEADLINE_S):
            if message.HasField("started"):
                cached = message.started.cached_by_tier.device_tokens
        return cached

    return Side(name, call, between, min_cached)


def generating(
    channel: grpc.aio.Channel, key: str, prompts: Sequence[PackedTokens], between: Listening, min_cached: int
) -> Side:
    """The router's way: what a tenant calls."""
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    metadata = (("authorization", f"Bearer {key}"),)
    sampling = pb.SamplingParams(max_tokens=1, ignore_eos=True)
    requests = itertools.cycle(
        [
            pb.GenerateStreamRequest(
                request=pb.GenerateRequest(
                    prompt=pb.Prompt(token_ids=pb.TokenIds(packed=prompt)), sampling_params=sampling
                )
            )
            for prompt in prompts
        ]
    )

    async def call() -> int:
        cached = 0
        async for event in stub.GenerateStream(next(requests), timeout=DEADLINE_S, metadata=metadata):
            if event.HasField("started"):
                cached = event.started.usage.cached_tokens
        return cached

    return Side(ROUTER, call, between, min_cached)
