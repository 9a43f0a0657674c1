"""A worker that does no work, for routers that speak HTTP: it answers `/generate` with one token, in one piece.

All that routers of SGLang's kind ask beside is answered so that they take it for ready. What is told comes as JSON on
standard input; it prints its address. Run as a module.
"""

from __future__ import annotations

import asyncio
import json
from typing import cast

import uvloop

_ABOUT = json.dumps(
    {
        "object": "list",
        "data": [{"id": "no-work", "object": "model"}],
        "model_path": "no-work",
        "served_model_name": "no-work",
        "is_generation": True,
        "version": "0",
    }
).encode()
_TOKEN = json.dumps({"text": "a", "meta_info": {"prompt_tokens": 2_048, "completion_tokens": 1}}).encode()
_OK = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
_GENERATED = f"{_OK}{len(_TOKEN)}\r\n\r\n".encode() + _TOKEN
_TOLD = f"{_OK}{len(_ABOUT)}\r\n\r\n".encode() + _ABOUT
_LENGTH = b"content-length:"


class _Connection(asyncio.Protocol):
    """Requests one after the other, their bodies skipped."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by class
        self._data = bytearray()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (head_bytes := self._data.find(b"\r\n\r\n") + 4) >= 4:
            head = bytes(self._data[:head_bytes]).lower()
            at = head.find(_LENGTH)
            body_bytes = int(head[at + len(_LENGTH) : head.index(b"\r\n", at)]) if at >= 0 else 0
            if len(self._data) < head_bytes + body_bytes:
                return
            del self._data[: head_bytes + body_bytes]
            self._transport.write(_GENERATED if head.startswith(b"post /generate ") else _TOLD)


async def serve() -> None:
    """Until it is ended from outside."""
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
