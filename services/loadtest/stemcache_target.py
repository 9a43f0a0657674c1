"""A tenant's way to Stemcache: gRPC streams, one channel per tenant, no retries, so that each failure is counted.

Reads the generated messages themselves and not the client's values: what is measured is the server, and a load
generator that is slow measures itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1.inference_pb2_grpc import InferenceServiceStub

from services.client.channel import async_channel, credential_metadata
from services.loadtest.records import OK, ServerTimes, TierTokens
from services.loadtest.targets import Answer, Call
from services.tls import Trust

_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.primary_user_agent", "stemcache-loadtest"),
    ("grpc.use_local_subchannel_pool", 1),  # tenants do not share a connection
)
MAX_ERROR = 300
"""Characters of an error that are kept."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """What all requests of a target do with the cache."""

    model: str
    partition: str
    mode: pb.CachePolicy.Mode.ValueType = pb.CachePolicy.MODE_READ_WRITE


class StemcacheTarget:
    """Sends as one tenant. Belongs to the event loop that made it; `close` it."""

    def __init__(
        self, address: str, api_key: str, policy: CachePolicy, timeout_s: float, trust: Trust | None = None
    ) -> None:
        """Plain without `trust`."""
        self._metadata = credential_metadata(api_key)
        self._timeout_s = timeout_s
        self._policy = policy
        self._channel = async_channel(address, trust, _OPTIONS)
        self._stub: Any = InferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the channel; running calls end."""
        await self._channel.close()

    async def send(self, call: Call, answer: Answer) -> None:
        """Streams one generation: greedy, of exactly `max_tokens`."""
        policy = self._policy
        message = pb.GenerateStreamRequest(
            request=pb.GenerateRequest(
                request_id=call.request_id,
                model=policy.model,
                prompt=pb.Prompt(token_ids=pb.TokenIds(packed=call.prompt)),
                sampling_params=pb.SamplingParams(max_tokens=call.max_tokens, ignore_eos=True),
                cache_policy=pb.CachePolicy(mode=policy.mode, partition=policy.partition, session_id=call.session),
            )
        )
        clock, arrivals, tokens = time.perf_counter, answer.arrivals_s, answer.tokens
        stream = self._stub.GenerateStream(message, timeout=self._timeout_s, metadata=self._metadata)
        try:
            async for response in stream:
                event = response.WhichOneof("event")
                if event == "delta":
                    packed = response.delta.token_ids.packed
                    if packed:
                        arrivals.append(clock())
                        tokens.append(packed)
                elif event == "started":
                    _read_start(response.started, answer)
                elif event == "finished":
                    _read_end(response.finished, answer)
        except grpc.aio.AioRpcError as error:
            answer.status = error.code().name
            answer.error = (error.details() or "")[:MAX_ERROR]
            return
        answer.status = OK if answer.status else grpc.StatusCode.DATA_LOSS.name
        if answer.status != OK:
            answer.error = "the stream ended without its last event"


def _read_start(started: pb.GenerationStarted, answer: Answer) -> None:
    _read_usage(started.usage, answer)
    answer.worker = started.route.worker_id
    answer.attempts = started.route.attempts
    answer.degraded = started.route.degraded


def _read_usage(usage: pb.Usage, answer: Answer) -> None:
    tiers = usage.cached_by_tier
    answer.prompt_tokens = usage.prompt_tokens
    answer.cached_tokens = usage.cached_tokens
    answer.cached_by_tier = TierTokens(tiers.device_tokens, tiers.host_tokens, tiers.disk_tokens, tiers.peer_tokens)


def _read_end(finished: pb.GenerationFinished, answer: Answer) -> None:
    _read_usage(finished.usage, answer)
    answer.completion_tokens = finished.usage.completion_tokens
    answer.written_tokens = finished.usage.written_tokens
    answer.status = OK
    times = finished.timings
    answer.server = ServerTimes(
        receive_unix_s=times.receive_time.ToNanoseconds() / 1e9,
        route_s=_s(times.route_duration),
        queue_s=_s(times.queue_duration),
        prefill_s=_s(times.prefill_duration),
        decode_s=_s(times.decode_duration),
        preempted_s=_s(times.preempted_duration),
        recompute_s=_s(times.recompute_duration),
        swap_s=_s(times.swap_duration),
        preemptions=times.preemptions,
        recomputed_tokens=times.recomputed_tokens,
    )


def _s(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
