"""One plain grpc.aio hop: hands every message of a stream on as bytes. What is told comes as JSON on standard input.

Run as a module; it prints its address.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop


class _Forward(grpc.GenericRpcHandler):
    """Every method is taken as one request and a stream of answers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Calls the same method there."""
        call = self._channel.unary_stream(handler_call_details.method)

        async def forward(request: bytes, context: Any) -> AsyncIterator[bytes]:
            async for message in call(request, timeout=context.time_remaining()):
                yield message

        return grpc.unary_stream_rpc_method_handler(forward)


async def serve(target: str) -> None:
    """Until it is ended from outside."""
    async with grpc.aio.insecure_channel(target) as channel:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Forward(channel),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"127.0.0.1:{port}", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(json.load(sys.stdin)["target"]))
