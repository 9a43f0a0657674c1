"""Real workers in this process, over the token-digest runner, and a client that calls them as a router does."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import duration_pb2, timestamp_pb2
from stemcache.worker.v1 import worker_pb2, worker_pb2_grpc

from cache_store.clock import SystemClock
from cache_store.domain import Domain, Epoch, FormatDigest
from cache_store.drain_token import sign_drain
from cache_store.fence import FenceOrder
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION, WorkerId
from cache_store.request_token import TOKEN_LIFETIME_S, RequestClaims, sign
from cache_store.tokens import pack, unpack
from tests.support.domains import make_domain
from worker.build import build_runner
from worker.config import NumBlocks, RunnerKind, WorkerConfig
from worker.digest_runner import digest_model
from worker.host import WorkerHost, WorkerParts
from worker.publisher import Stores

CLUSTER_KEY = b"k" * 32
"""MAC key of the tests' clusters."""

DIGEST_FORMAT: FormatDigest = digest_model().kv_format.digest()
"""KV format of the token-digest runner."""

FIRST_ORDER: FenceOrder = (0, Epoch(""), 0)


def digest_domain(tenant: str = "acme", partition: str = "", epoch: str = "e1") -> Domain:
    """A domain that the tests' workers serve."""
    return make_domain(tenant, partition, epoch, DIGEST_FORMAT)


def digest_config(
    worker_id: str = "worker-0", redis_url: str = "redis://127.0.0.1:1/0", **changes: Any
) -> WorkerConfig:
    """Configuration of a worker with the token-digest runner; `changes` are fields of WorkerConfig."""
    values: dict[str, Any] = {
        "worker_id": WorkerId(worker_id),
        "model_name": "token-digest",
        "redis_url": redis_url,
        "cluster_key": CLUSTER_KEY,
        "pool": NumBlocks(512),
        "runner": RunnerKind.DIGEST,
    }
    return WorkerConfig(**(values | changes))


@asynccontextmanager
async def running_workers(
    configs: Sequence[WorkerConfig], connect_stores: Callable[[WorkerConfig], Stores]
) -> AsyncIterator[list[WorkerHost]]:
    """Starts a worker per configuration on the running loop and stops them at the end.

    `connect_stores`: `worker.build.connect_stores` for Redis, `MemoryStores().connect` without a server.
    """
    async with AsyncExitStack() as stack:
        hosts = []
        for config in configs:
            host = await WorkerHost.start(config, WorkerParts(build_runner, connect_stores, SystemClock()))
            stack.push_async_callback(host.stop)
            hosts.append(host)
        yield hosts


@dataclass
class Execution:
    """A request that ran to its end."""

    cached_tokens: int = -1
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By sample index."""
    finish_reasons: dict[int, int] = field(default_factory=dict)
    num_messages: int = 0
    finished: worker_pb2.ExecuteFinished | None = None


class WorkerClient:
    """Calls one incarnation of a worker with signed tokens, as a router does."""

    def __init__(self, address: str, incarnation: Incarnation, cluster_key: bytes = CLUSTER_KEY) -> None:
        self._incarnation = incarnation
        self._cluster_key = cluster_key
        self.channel = grpc.aio.insecure_channel(address)
        self.stub: Any = worker_pb2_grpc.WorkerServiceStub(self.channel)
        self._num_requests = 0

    async def __aenter__(self) -> WorkerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    def token(
        self,
        domain: Domain,
        lifetime_s: float = TOKEN_LIFETIME_S,
        incarnation: Incarnation | None = None,
        fence_order: FenceOrder = FIRST_ORDER,
        control_generation: int = 1,
    ) -> bytes:
        """A signed token of a fresh request; its router knew control data of that generation."""
        self._num_requests += 1
        claims = RequestClaims(
            domain=domain,
            request_id=f"r{self._num_requests}",
            incarnation=incarnation or self._incarnation,
            expires_unix_s=time.time() + lifetime_s,
            fence_order=fence_order,
            control_generation=control_generation,
        )
        return sign(self._cluster_key, claims)

    def message(self, domain: Domain, prompt: Sequence[int], **sampling: Any) -> worker_pb2.ExecuteRequest:
        """A valid greedy request; `sampling` are fields of TokenSampling."""
        values = {"top_p": 1.0, "max_tokens": 8, "n": 1} | sampling
        return worker_pb2.ExecuteRequest(
            protocol_version=PROTOCOL_VERSION,
            request_token=self.token(domain),
            prompt=pack(prompt),
            sampling=worker_pb2.TokenSampling(**values),
        )

    def call(
        self, message: worker_pb2.ExecuteRequest, timeout_s: float = 30.0
    ) -> grpc.aio.UnaryStreamCall[worker_pb2.ExecuteRequest, worker_pb2.ExecuteResponse]:
        """The raw call."""
        return self.stub.Execute(message, timeout=timeout_s)

    async def run(self, message: worker_pb2.ExecuteRequest, timeout_s: float = 30.0) -> Execution:
        """Reads a call to its end. Raises grpc.aio.AioRpcError."""
        execution = Execution()
        async for response in self.call(message, timeout_s):
            execution.num_messages += 1
            kind = response.WhichOneof("event")
            if kind == "started":
                execution.cached_tokens = response.started.cached_tokens
            elif kind == "tokens":
                execution.tokens[response.tokens.sample_index] += unpack(response.tokens.packed)
                if response.tokens.finish_reason:
                    execution.finish_reasons[response.tokens.sample_index] = response.tokens.finish_reason
            else:
                execution.finished = response.finished
        return execution

    async def execute(self, domain: Domain, prompt: Sequence[int], **sampling: Any) -> Execution:
        """Runs a valid request to its end. Raises grpc.aio.AioRpcError."""
        return await self.run(self.message(domain, prompt, **sampling))


def client_of(host: WorkerHost) -> WorkerClient:
    """A client of a running host."""
    return WorkerClient(host.address, host.incarnation)


def drain_order(leaver: WorkerHost, *takers: WorkerHost) -> worker_pb2.DrainRequest:
    """To leave, with those that would take over."""
    now = timestamp_pb2.Timestamp()
    now.FromNanoseconds(time.time_ns())
    return worker_pb2.DrainRequest(
        protocol_version=PROTOCOL_VERSION,
        drain_token=sign_drain(CLUSTER_KEY, leaver.incarnation, time.time() + 15.0),
        peers=[
            worker_pb2.DrainPeer(address=each.address, incarnation=each.incarnation, clock_time=now) for each in takers
        ],
        grace_duration=duration_pb2.Duration(seconds=10),
    )
