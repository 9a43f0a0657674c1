"""Who may read metrics, and what a reader can do to the process that shows them: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.telemetry.http_server import MAX_HEAD_BYTES, MAX_OPEN, MetricsServer, Page
from cache_store.telemetry.listen import MetricsListen

TOKEN = "t" * 32


async def text() -> str:
    return "up 1\n"


async def broken() -> str:
    raise RuntimeError("no")


PAGES = {"/metrics": Page("text/plain", text), "/broken": Page("text/plain", broken)}


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    server = await MetricsServer.start(MetricsListen(), PAGES)
    yield server
    await server.stop()


@pytest.fixture
async def guarded() -> AsyncIterator[MetricsServer]:
    server = await MetricsServer.start(MetricsListen(token=TOKEN), PAGES)
    yield server
    await server.stop()


async def ask(server: MetricsServer, request: bytes) -> bytes:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:  # closed with the request unread
        return b""
    finally:
        writer.close()


def get(path: str = "/metrics", *headers: str, host: str = "127.0.0.1:1") -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", "")).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_whoever_is_on_this_machine_reads_the_page(server: MetricsServer) -> None:
    answer = await ask(server, get("/metrics?x=1"))
    assert status(answer) == 200
    assert answer.endswith(b"\r\n\r\nup 1\n")


async def test_a_web_page_that_resolves_to_this_machine_does_not(server: MetricsServer) -> None:
    assert status(await ask(server, get(host="evil.example:9"))) == 401
    assert status(await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")) == 401
    assert status(await ask(server, get(host="localhost:9"))) == 200


async def test_where_a_token_is_set_nobody_reads_without_it(guarded: MetricsServer) -> None:
    assert status(await ask(guarded, get())) == 401
    assert status(await ask(guarded, get("/metrics", f"Authorization: Bearer {TOKEN[:-1]}"))) == 401
    assert status(await ask(guarded, get("/metrics", f"authorization: Bearer {TOKEN}", host="node-7:1"))) == 200


async def test_other_paths_and_methods_are_refused(server: MetricsServer) -> None:
    assert status(await ask(server, get("/"))) == 404
    assert status(await ask(server, get().replace(b"GET", b"POST"))) == 405


async def test_a_page_that_fails_ends_nothing(server: MetricsServer) -> None:
    answer = await ask(server, get("/broken"))
    assert status(answer) == 500
    assert b"no" not in answer.rpartition(b"\r\n\r\n")[2]
    assert status(await ask(server, get())) == 200


async def test_a_request_without_end_is_not_kept(server: MetricsServer) -> None:
    assert await ask(server, get("/metrics", "X: " + "x" * 2 * MAX_HEAD_BYTES)) == b""
    assert status(await ask(server, get())) == 200


async def test_connections_are_bounded(server: MetricsServer) -> None:
    host, _, port = server.address.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(MAX_OPEN)]
    assert await ask(server, get()) == b""
    for _, writer in silent:
        writer.close()
        await writer.wait_closed()
    while await ask(server, get()) == b"":
        await asyncio.sleep(0.01)


async def test_a_port_that_is_taken_is_named(server: MetricsServer) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(PreconditionError, match=str(port)):
        await MetricsServer.start(MetricsListen(port=port), PAGES)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "node-7"])
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(InvalidRequestError, match="token"):
        MetricsListen(host)
    MetricsListen(host, token=TOKEN)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="16"):
        MetricsListen(token="secret")


def test_the_token_is_in_no_repr() -> None:
    assert TOKEN not in repr(MetricsListen(token=TOKEN))
