"""A call of the router and one of the worker, each as it is made where requests are traced and where they are not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import inference_pb2_grpc
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from cache_store.request_token import RequestClaims, sign
from cache_store.tokens import PackedTokens
from services.tenants.directory import KnownTenant
from services.tenants.master_key import cluster_key
from tests.support.router_host import MASTER

WORKER_TOKENS = 64
"""Of each answer of a worker that is asked straight."""

_TOKEN_S = 3_600.0
_DEADLINE_S = 60.0

Asked = Callable[[], Awaitable[None]]


def generate(channel: grpc.aio.Channel, key: str, prompt: PackedTokens) -> Asked:
    """A request of a tenant for one token."""
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    metadata = (("authorization", f"Bearer {key}"),)
    sampling = pb.SamplingParams(max_tokens=1, ignore_eos=True)
    asked = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(packed=prompt)), sampling_params=sampling)
    request = pb.GenerateStreamRequest(request=asked)

    async def call() -> None:
        async for _ in stub.GenerateStream(request, timeout=_DEADLINE_S, metadata=metadata):
            pass

    return call


def message_for(worker: WorkerRecord, known: KnownTenant, prompt: PackedTokens) -> worker_pb2.ExecuteRequest:
    """What a router would make of a request; a worker takes it again and again."""
    claims = RequestClaims(
        domain=known.domain("", worker.model, worker.kv_format),
        request_id="bench",
        incarnation=worker.incarnation,
        expires_unix_s=time.time() + _TOKEN_S,
        fence_order=known.tenant.fence.order,
        control_generation=known.generation,
    )
    return worker_pb2.ExecuteRequest(
        protocol_version=PROTOCOL_VERSION,
        request_token=sign(cluster_key(MASTER), claims),
        prompt=prompt,
        sampling=worker_pb2.TokenSampling(top_p=1.0, max_tokens=WORKER_TOKENS, n=1),
        cache_mode=pb.CachePolicy.MODE_READ_WRITE,
    )


def execute(channel: grpc.aio.Channel, message: worker_pb2.ExecuteRequest, traces_per_s: int) -> Asked:
    """As a router sends it: of those that it traces, so many a second, the trace's context comes along."""
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    numbers = itertools.count(1)
    traced_s = [0.0]

    async def call() -> None:
        metadata = None
        if (now_s := time.monotonic()) - traced_s[0] >= 1 / traces_per_s:
            traced_s[0] = now_s
            metadata = (("traceparent", f"00-{next(numbers):032x}-{1:016x}-01"),)
        async for _ in stub.Execute(message, timeout=_DEADLINE_S, metadata=metadata):
            pass

    return call
