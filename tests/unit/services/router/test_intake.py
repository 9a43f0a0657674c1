"""Calls behind a place: it is taken before the message, and given back however the call ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from cache_store.errors import UnavailableError
from services.router.intake import placed

Code = grpc.StatusCode


class Places:
    """Two places."""

    def __init__(self) -> None:
        self.num_taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self.num_taken == 2:
            raise UnavailableError("full", 1.0)
        self.num_taken += 1
        try:
            yield
        finally:
            self.num_taken -= 1


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
async def channel(places: Places) -> AsyncIterator[grpc.aio.Channel]:
    async def echo(request: bytes, context: Any) -> bytes:
        assert places.num_taken > 0
        return request

    async def twice(request: bytes, context: Any) -> None:
        await context.write(request)
        await context.write(request)

    async def talk(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    handlers = {
        "Echo": placed(grpc.unary_unary_rpc_method_handler(echo), places.taken, message_s=0.2),
        "Twice": placed(grpc.unary_stream_rpc_method_handler(twice), places.taken, message_s=0.2),
        "Talk": placed(grpc.stream_stream_rpc_method_handler(talk), places.taken),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made
    await server.stop(0)
    assert places.num_taken == 0


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


async def test_to_a_caller_nothing_changes(channel: grpc.aio.Channel) -> None:
    assert await channel.unary_unary("/s/Echo")(b"a") == b"a"
    assert [each async for each in channel.unary_stream("/s/Twice")(b"a")] == [b"a", b"a"]
    talk = channel.stream_stream("/s/Talk")(iter([b"a", b"b"]))
    assert [each async for each in talk] == [b"a", b"b"]


@pytest.mark.parametrize("method", ["/s/Echo", "/s/Twice"])
async def test_a_message_that_does_not_come_ends_the_call(channel: grpc.aio.Channel, method: str) -> None:
    assert await code_of(channel.stream_unary(method)()) is Code.DEADLINE_EXCEEDED


async def test_a_call_without_a_message_is_invalid(channel: grpc.aio.Channel) -> None:
    assert await code_of(channel.stream_unary("/s/Echo")(iter([]))) is Code.INVALID_ARGUMENT


async def test_calls_beyond_the_places_are_refused_before_their_message(
    channel: grpc.aio.Channel, places: Places
) -> None:
    talks = [channel.stream_stream("/s/Talk")() for _ in range(2)]
    for talk in talks:
        await talk.write(b"a")
        assert await talk.read() == b"a"
    assert await code_of(channel.stream_unary("/s/Echo")()) is Code.UNAVAILABLE
    assert await code_of(channel.stream_stream("/s/Talk")().read()) is Code.UNAVAILABLE
    for talk in talks:
        talk.cancel()
    while places.num_taken:
        await asyncio.sleep(0.01)
    assert await channel.unary_unary("/s/Echo")(b"a") == b"a"
