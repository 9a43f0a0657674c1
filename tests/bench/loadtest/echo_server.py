"""A server that answers GenerateStream at once, in a process of its own: started, some deltas, finished.

Takes request bytes as they are and sends messages that were made ahead, so that it is not what is measured. What is
told comes as JSON on standard input; it prints its address.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop
from stemcache.v1 import inference_pb2 as pb

from cache_store.tokens import pack

METHOD = "/stemcache.v1.InferenceService/GenerateStream"


def messages(num_tokens: int) -> list[bytes]:
    """One answer, as bytes."""
    usage = pb.Usage(prompt_tokens=64, cached_tokens=48)
    started = pb.GenerationStarted(usage=usage, route=pb.Route(worker_id="echo", attempts=1))
    delta = pb.GenerationDelta(text=" word", token_ids=pb.TokenIds(packed=pack([7])))
    usage = pb.Usage(prompt_tokens=64, cached_tokens=48, completion_tokens=num_tokens)
    sample = pb.SampleFinish(finish_reason=pb.FINISH_REASON_LENGTH)
    finished = pb.GenerationFinished(samples=[sample], usage=usage)
    events = [
        pb.GenerateStreamResponse(request_id="r", started=started),
        *[pb.GenerateStreamResponse(request_id="r", delta=delta)] * num_tokens,
        pb.GenerateStreamResponse(request_id="r", finished=finished),
    ]
    return [event.SerializeToString() for event in events]


class _Echo(grpc.GenericRpcHandler):
    def __init__(self, answer: list[bytes]) -> None:
        self._answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The one method."""
        if handler_call_details.method != METHOD:
            return None

        async def echo(request: bytes, context: Any) -> AsyncIterator[bytes]:
            for message in self._answer:
                yield message

        return grpc.unary_stream_rpc_method_handler(echo)


async def serve(num_tokens: int) -> None:
    """Until it is ended from outside."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(messages(num_tokens)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(json.load(sys.stdin)["tokens"]))
