"""A collector that takes spans and looks at none: what it costs must not count against those that send them.

Runs in the benchmark's own process, which is not measured. It counts bytes, so that a run in which nothing was sent is
noticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc


@dataclass(slots=True)
class Collector:
    """What has come."""

    endpoint: str = ""
    num_bytes: int = 0


@asynccontextmanager
async def counting() -> AsyncIterator[Collector]:
    """On loopback, until the block ends."""
    collector = Collector()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Taking(collector),))
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(0.5)


class _Taking(grpc.GenericRpcHandler):
    """Answers every call with an empty message."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The same for all methods."""

        async def take(request: bytes, _: Any) -> bytes:
            self._collector.num_bytes += len(request)
            return b""

        return grpc.unary_unary_rpc_method_handler(take)
