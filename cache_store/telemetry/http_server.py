"""A small HTTP server for metrics: GET only, one answer a connection, bounded in everything a peer can send.

Where no token is set, requests must name the loopback address as their host: a web page that was made to resolve to
127.0.0.1 does not. Owned by the event loop that starts it. Knows nothing about what it shows.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import structlog

from cache_store.errors import PreconditionError
from cache_store.telemetry.listen import MetricsListen, is_loopback

MAX_HEAD_BYTES = 8_192
MAX_OPEN = 16
"""Connections at once; more are closed unread."""

REQUEST_S = 5.0
"""To send a request."""
ANSWER_S = 10.0
"""To make the answer and have it read."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """What a path shows."""

    content_type: str
    make: Callable[[], Awaitable[str]]


class MetricsServer:
    """Serves pages by path. Made by `start`."""

    def __init__(self, listen: MetricsListen, pages: Mapping[str, Page]) -> None:
        self._token = listen.token
        self._pages = dict(pages)
        self._num_open = 0
        self._server: asyncio.Server
        self.address = ""
        """host:port."""

    @classmethod
    async def start(cls, listen: MetricsListen, pages: Mapping[str, Page]) -> MetricsServer:
        """Listens. Raises PreconditionError where the port is taken."""
        server = cls(listen, pages)
        try:
            server._server = await asyncio.start_server(
                server._serve, listen.host.strip("[]"), listen.port, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            at = f"{listen.host}:{listen.port}"
            raise PreconditionError(
                f"metrics cannot be shown on {at} ({error.strerror}); free the port or name another"
            ) from error
        port = server._server.sockets[0].getsockname()[1]
        server.address = f"{listen.host}:{port}"
        return server

    async def stop(self) -> None:
        """Takes no more connections; those that are open end by themselves. Idempotent."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        try:
            if self._num_open <= MAX_OPEN:
                async with asyncio.timeout(REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(ANSWER_S):
                    writer.write(await self._answer(head))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # whoever is too slow, too long or gone gets nothing
        finally:
            self._num_open -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if not self._may_read(headers):
            return _response(HTTPStatus.UNAUTHORIZED, "text/plain", "not for you\n")
        page = self._pages.get(path)
        if page is None:
            return _response(HTTPStatus.NOT_FOUND, "text/plain", f"try {', '.join(self._pages)}\n")
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "GET only\n")
        try:
            text = await page.make()
        except Exception as error:  # the edge: a scrape that fails must not end the process
            _log.error("metrics_failed", path=path, error=type(error).__name__, exc_info=error)
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", "see the log\n")
        return _response(HTTPStatus.OK, page.content_type, text)

    def _may_read(self, headers: Mapping[str, str]) -> bool:
        if not self._token:
            return is_loopback(headers.get("host", "").rpartition(":")[0] or headers.get("host", ""))
        given = headers.get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, f"Bearer {self._token}".encode())


def _response(status: HTTPStatus, content_type: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
