"""Calls of a tenant's cache through a router, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from stemcache.v1 import cache_pb2 as pb
from stemcache.v1 import inference_pb2

from cache_store.tokens import pack
from tests.support.router_host import Tenant, eventually_async

PROMPT = range(1, 101)
"""Six full blocks of 16 tokens, and four tokens."""
MINUTE = Duration(seconds=60)


def prompt_of(tokens: Sequence[int]) -> inference_pb2.Prompt:
    return inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(packed=pack(tokens)))


async def call(tenant: Tenant, name: str, message: Any, timeout_s: float | None = 20.0) -> Any:
    return await getattr(tenant.cache, name)(message, timeout=timeout_s, metadata=tenant.metadata)


async def lookup(tenant: Tenant, tokens: Sequence[int] = PROMPT, **fields: Any) -> Any:
    return await call(tenant, "LookupPrefix", pb.LookupPrefixRequest(prompt=prompt_of(tokens), **fields))


async def matched(tenant: Tenant, tokens: Sequence[int] = PROMPT, **fields: Any) -> int:
    return int((await lookup(tenant, tokens, **fields)).matched_tokens)


async def until_matched(tenant: Tenant, num_tokens: int, tokens: Sequence[int] = PROMPT) -> None:
    """The index hears of blocks a moment after they were stored."""

    async def is_there() -> bool:
        return await matched(tenant, tokens) >= num_tokens

    await eventually_async(is_there)


async def warm(tenant: Tenant, tokens: Sequence[int] = PROMPT, **fields: Any) -> pb.WarmPrefixResponse:
    response: pb.WarmPrefixResponse = await call(
        tenant, "WarmPrefix", pb.WarmPrefixRequest(prompt=prompt_of(tokens), **fields)
    )
    return response


async def pin(tenant: Tenant, tokens: Sequence[int] = PROMPT, **fields: Any) -> pb.Pin:
    message = pb.PinPrefixRequest(prompt=prompt_of(tokens), **({"ttl": MINUTE} | fields))
    response: pb.PinPrefixResponse = await call(tenant, "PinPrefix", message)
    return response.pin


async def unpin(tenant: Tenant, pin_id: str) -> bool:
    return bool((await call(tenant, "UnpinPrefix", pb.UnpinPrefixRequest(pin_id=pin_id))).was_pinned)


async def pins(tenant: Tenant) -> list[pb.Pin]:
    return list((await call(tenant, "ListPins", pb.ListPinsRequest())).pins)


async def refusal(awaitable: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await awaitable
    return error.value
