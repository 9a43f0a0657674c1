"""The console's HTTP server over real sockets: what it answers, and what it takes from nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import services.console.http_server as http_server
from services.console.http_server import MAX_BODY_BYTES, HttpServer, Request, Response


async def echo(request: Request) -> Response:
    """Says what it was asked."""
    if request.path == "/raises":
        raise RecursionError
    said = f"{request.method} {request.path} {sorted(request.query.items())} {request.body.decode()}"
    return Response(200, said.encode(), "text/plain", (("x-own", "1"),))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = HttpServer(echo)
    yield await server.start("127.0.0.1", 0)
    await server.stop()


async def talk(port: int, data: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def ask(head: str, body: str = "", *more: str) -> bytes:
    lines = [f"{head} HTTP/1.1", "host: a", f"content-length: {len(body)}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


async def test_requests_are_answered_one_after_the_other(port: int) -> None:
    answer = await talk(port, ask("GET /a?b=c&d=") + ask("POST /e", "f", "connection: close"))
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"GET /a [('b', 'c'), ('d', '')] " in answer
    assert b"POST /e [] f" in answer
    assert b"x-own: 1" in answer


async def test_who_asks_for_the_head_gets_the_head(port: int) -> None:
    answer = await talk(port, ask("HEAD /a") + ask("GET /b", "", "connection: close"))
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"HEAD /a" not in answer
    assert b"GET /b" in answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (ask("POST /", "x" * (MAX_BODY_BYTES + 1)), b"413"),
        (ask("GET /", "", f"x: {'y' * 40_000}"), b"431"),
        (ask("GET /", "", "content-length: 7"), b"400"),
        (ask("GET //["), b"400"),
        (ask("GET /?" + "&".join("a" * 17)), b"400"),
        (ask("GET /raises", "", "connection: close"), b"500"),
    ],
)
async def test_what_is_wrong_or_too_large_is_refused(port: int, data: bytes, status: bytes) -> None:
    assert (await talk(port, data)).startswith(b"HTTP/1.1 " + status)
    assert b"200" in await talk(port, ask("GET /", "", "connection: close"))


async def test_who_is_slow_is_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.05)
    monkeypatch.setattr(http_server, "READ_S", 0.05)
    assert await talk(port, b"GET / HT") == b""
    assert await talk(port, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab") == b""


async def test_there_are_only_so_many_connections(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ask("GET /"))
    assert await reader.readline() == b"HTTP/1.1 200 \r\n"
    assert await talk(port, ask("GET /")) == b""
    writer.close()
    await writer.wait_closed()

    async def answered() -> bool:
        return b"200" in await talk(port, ask("GET /", "", "connection: close"))

    async with asyncio.timeout(10):
        while not await answered():
            await asyncio.sleep(0.02)
