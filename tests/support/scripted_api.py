"""An InferenceService whose answers are scripted: for tests of what a client makes of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status
from stemcache.v1 import cache_pb2, cache_pb2_grpc
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import inference_pb2_grpc as rpc


@dataclass(frozen=True)
class Failure:
    """A status to end the next call with."""

    code: int
    message: str
    details: tuple[Message, ...] = ()


UNAVAILABLE = Failure(code_pb2.UNAVAILABLE, "no worker is ready")


class ScriptedApi(rpc.InferenceServiceServicer, cache_pb2_grpc.CacheServiceServicer):
    """Fails as often as `failures` holds, then answers; remembers what it was asked."""

    def __init__(self) -> None:
        self.address = ""
        self.failures: list[Failure] = []
        self.requests: list[pb.GenerateRequest] = []
        self.cache_requests: list[Message] = []
        self.pin = cache_pb2.Pin(pin_id="pin-1", display_name="n", model="m", block_count=6, size_bytes=3 << 20)
        self.metadata: dict[str, str] = {}
        self.events: list[pb.GenerateStreamResponse] = []
        self.first_events: list[list[pb.GenerateStreamResponse]] = []
        """Of the first streams, instead of `events`."""
        self.raw_details: bytes | None = None
        self.hold_stream = False
        self.last_failure: list[Failure] = []
        """What a stream ends with, after its events."""
        self.stream_ended = threading.Event()

    def _enter(self, context: grpc.ServicerContext) -> None:
        self.metadata = {key: str(value) for key, value in context.invocation_metadata()}
        self._fail(self.failures, context)

    def _fail(self, failures: list[Failure], context: grpc.ServicerContext) -> None:
        if not failures:
            return
        failure = failures.pop(0)
        if self.raw_details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", self.raw_details),))
            context.abort(grpc.StatusCode.NOT_FOUND, failure.message)
        status = status_pb2.Status(code=failure.code, message=failure.message)
        for detail in failure.details:
            status.details.add().Pack(detail)
        context.abort_with_status(rpc_status.to_status(status))

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> pb.GenerateResponse:  # noqa: N802
        self.requests.append(request)
        self._enter(context)
        usage = pb.Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3, computed_tokens=2)
        usage.cached_by_tier.host_tokens = 3
        completion = pb.Completion(
            text="hi", token_ids=pb.TokenIds(packed=b"\x07\0\0\0\x08\0\0\0"), finish_reason=pb.FINISH_REASON_LENGTH
        )
        response = pb.GenerateResponse(request_id=request.request_id, completions=[completion], usage=usage, seed=9)
        response.timings.route_duration.FromMilliseconds(250)
        response.timings.preempted_duration.FromMilliseconds(1_500)
        response.timings.recompute_duration.FromMilliseconds(500)
        response.timings.swap_duration.FromMilliseconds(125)
        response.timings.preemptions, response.timings.recomputed_tokens = 2, 300
        response.route.worker_id = "worker-0"
        return response

    def GenerateStream(  # noqa: N802
        self, request: pb.GenerateStreamRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateStreamResponse]:
        self.requests.append(request.request)
        context.add_callback(self.stream_ended.set)
        self._enter(context)
        yield from self.first_events.pop(0) if self.first_events else self.events
        if self.hold_stream:
            self.stream_ended.wait(timeout=10)
        self._fail(self.last_failure, context)

    def CancelGeneration(  # noqa: N802
        self, request: pb.CancelGenerationRequest, context: grpc.ServicerContext
    ) -> pb.CancelGenerationResponse:
        self._enter(context)
        return pb.CancelGenerationResponse(was_running=request.request_id == "running")

    def Tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeResponse:  # noqa: N802
        self._enter(context)
        return pb.TokenizeResponse(token_ids=request.prompt.token_ids, block_count=1)

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:  # noqa: N802
        self._enter(context)
        return pb.ListModelsResponse(models=[pb.Model(name="m", block_size=16, max_model_len=64)])

    def LookupPrefix(  # noqa: N802
        self, request: cache_pb2.LookupPrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.LookupPrefixResponse:
        self.cache_requests.append(request)
        self._enter(context)
        return cache_pb2.LookupPrefixResponse(prompt_tokens=100, matched_tokens=99, matched_blocks=6)

    def WarmPrefix(  # noqa: N802
        self, request: cache_pb2.WarmPrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.WarmPrefixResponse:
        self.cache_requests.append(request)
        self._enter(context)
        usage = pb.Usage(prompt_tokens=100, cached_tokens=32, computed_tokens=68)
        return cache_pb2.WarmPrefixResponse(usage=usage)

    def PinPrefix(  # noqa: N802
        self, request: cache_pb2.PinPrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.PinPrefixResponse:
        self.cache_requests.append(request)
        self._enter(context)
        return cache_pb2.PinPrefixResponse(pin=self.pin)

    def UnpinPrefix(  # noqa: N802
        self, request: cache_pb2.UnpinPrefixRequest, context: grpc.ServicerContext
    ) -> cache_pb2.UnpinPrefixResponse:
        self.cache_requests.append(request)
        self._enter(context)
        return cache_pb2.UnpinPrefixResponse(was_pinned=request.pin_id == self.pin.pin_id)

    def ListPins(  # noqa: N802
        self, request: cache_pb2.ListPinsRequest, context: grpc.ServicerContext
    ) -> cache_pb2.ListPinsResponse:
        self.cache_requests.append(request)
        self._enter(context)
        return cache_pb2.ListPinsResponse(pins=[self.pin])

    def PurgeCache(  # noqa: N802
        self, request: cache_pb2.PurgeCacheRequest, context: grpc.ServicerContext
    ) -> cache_pb2.PurgeCacheResponse:
        self.cache_requests.append(request)
        self._enter(context)
        response = cache_pb2.PurgeCacheResponse(acknowledged_workers=2, pending_workers=1, uncounted_workers=1)
        response.purge_time.FromSeconds(1_700_000_000)
        response.complete_time.FromSeconds(1_700_000_010)
        response.purged_blocks.MergeFrom(cache_pb2.BlocksByTier(device_blocks=5, host_blocks=3, disk_blocks=2))
        return response
