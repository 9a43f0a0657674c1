"""A caller that speaks HTTP/2 by hand and takes no bytes of an answer: no client library misbehaves on purpose."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4


@asynccontextmanager
async def unread_call(
    address: str, method: str, message: bytes, metadata: Sequence[tuple[str, str]] = ()
) -> AsyncIterator[None]:
    """A call of `method` whose answer the server may not send: the window is 0 bytes."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": address,
        "content-type": "application/grpc",
        "te": "trailers",
        **dict(metadata),
    }
    writer.write(_PREFACE)
    writer.write(_frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0)))
    writer.write(_frame(_HEADERS, _END_HEADERS, 1, b"".join(_literal(*header) for header in headers.items())))
    writer.write(_frame(_DATA, _END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message))
    await writer.drain()
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header that no table of either side remembers; short ones only."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
