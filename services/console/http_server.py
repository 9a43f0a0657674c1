"""A small HTTP/1.1 server for the console: bounded in everything, and polite to nobody who is slow. Knows no console.

h11 reads and writes the protocol; this module owns the connections. One request at a time on each. Owned by one event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import h11
import structlog

MAX_CONNECTIONS = 64
MAX_HEADER_BYTES = 16 << 10
MAX_BODY_BYTES = 4 << 10
MAX_FIELDS = 16
"""Of a query."""
READ_S = 10.0
"""For a whole request, from its first byte."""
IDLE_S = 60.0
"""Between two requests of a connection."""
ANSWER_S = 20.0
WRITE_S = 20.0
"""For a reader to take an answer."""

_CHUNK = 4 << 10
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are in lower case; of a repeated one the last counts."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: str
    """Where it comes from, without the port."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = field(default=())


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Answers by `handler`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listens; the port. Raises OSError."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_HEADER_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listens no more and ends all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="console-connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer)
        try:
            while (request := await connection.read()) is not None:
                response = await self._answered(request)
                await connection.write(response)
                if not connection.goes_on():
                    break
        except (TimeoutError, ConnectionError, h11.ProtocolError) as error:
            _log.debug("console.connection_ended", reason=type(error).__name__)
        finally:
            writer.transport.abort()

    async def _answered(self, request: Request) -> Response:
        """What the handler says; what it raises is our fault, and ends no connection. Raises TimeoutError."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._handler(request)
        except TimeoutError:
            raise
        except Exception as error:
            _log.error("console.failed", reason=type(error).__name__)
            return Response(500)


class _Connection:
    """One connection's protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        peer = writer.get_extra_info("peername")
        self._is_head = False
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""

    async def read(self) -> Request | None:
        """The next request; None where there will be none, or none that is taken: that was answered."""
        try:
            return await self._read()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self.write(Response(error.error_status_hint))
            return None

    async def _read(self) -> Request | None:
        async with asyncio.timeout(IDLE_S):
            head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        self._is_head = head.method == b"HEAD"
        body = bytearray()
        async with asyncio.timeout(READ_S):
            while isinstance(event := await self._event(), h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
        if not isinstance(event, h11.EndOfMessage):
            return None
        try:
            target = urlsplit(head.target.decode("latin-1"))
            query = dict(parse_qsl(target.query, keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError as error:
            raise h11.RemoteProtocolError("the target cannot be read") from error
        return Request(
            method=head.method.decode("ascii"),
            path=target.path,
            query=query,
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers},
            body=bytes(body),
            peer=self._peer,
        )

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_CHUNK))
        return event

    async def write(self, response: Response) -> None:
        """Sends an answer. Raises TimeoutError where nobody takes it."""
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
            *response.headers,
        ]
        parts = [
            self._http.send(h11.Response(status_code=response.status, headers=headers)),
            None if self._is_head else self._http.send(h11.Data(data=response.body)),
            self._http.send(h11.EndOfMessage()),
        ]
        self._writer.write(b"".join(part for part in parts if part))
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()

    def goes_on(self) -> bool:
        """Whether another request may follow."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True
