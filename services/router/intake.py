"""Takes the place of a call before its message is read, and waits for that message for a bounded time.

A call may be opened without ever sending its message, or be kept open for ever; whoever does so uses up places of its
own. Knows neither who has which places nor what the methods do. Holds no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from cache_store.errors import DeadlineError, InvalidRequestError, StemcacheError
from services.router.statuses import abort_with

MESSAGE_S = 30.0
"""What a caller is given to send its message."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # in quotes: a generic to the type checker only
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Places = Callable[[], AbstractContextManager[None]]
"""A place for as long as the block runs. Raises StemcacheError where there is none."""


def placed(handler: Handler, places: Places, message_s: float = MESSAGE_S) -> Handler:
    """`handler` behind a place. To the caller nothing changes: streams of one message look like that message."""
    if handler.request_streaming:
        return _conversation(handler, places)
    method: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

    async def answer(_: AsyncIterator[bytes], context: Context) -> Any:
        try:
            with places():
                message = await _message(context, message_s)
                return await method(_parsed(handler, message), context)
        except StemcacheError as error:  # the place's or the message's; a method ends with a status by itself
            await abort_with(context, error)

    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(answer, None, handler.response_serializer)


def _parsed(handler: Handler, message: bytes) -> Any:
    if handler.request_deserializer is None:
        return message
    try:
        return handler.request_deserializer(message)
    except DecodeError as error:
        raise InvalidRequestError("request", f"the message cannot be read: {error}") from None


def _conversation(handler: Handler, places: Places) -> Handler:
    talk: Any = handler.stream_stream

    async def answers(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            with places():
                async for answer in talk(requests, context):
                    yield answer
        except StemcacheError as error:
            await abort_with(context, error)

    return grpc.stream_stream_rpc_method_handler(answers, handler.request_deserializer, handler.response_serializer)


async def _message(context: Context, message_s: float) -> bytes:
    try:
        async with asyncio.timeout(message_s):
            message = await context.read()
    except TimeoutError:
        raise DeadlineError(f"the call's message did not come within {message_s:g} s") from None
    if not isinstance(message, bytes):
        raise InvalidRequestError("request", "the call ended without a message; send one")
    return message
