"""A tenant's cache, asyncio: `AsyncStemcacheClient.cache`. Uses the channel of its client."""

from __future__ import annotations

import grpc.aio
from stemcache.v1 import cache_pb2 as pb
from stemcache.v1.cache_pb2_grpc import CacheServiceStub

from services.client import cache_messages as messages
from services.client.cache_results import CachedPrefix, Pin, Purged
from services.client.channel import CALL_TIMEOUT_S, CallMetadata
from services.client.errors import api_errors
from services.client.messages import usage_of
from services.client.purge_scope import PurgeScope
from services.client.requests import NO_HINTS, CacheHints, Prompt
from services.client.results import Usage


class AsyncTenantCache:
    """Sees and steers what is cached of one tenant's. Every method raises ApiError."""

    def __init__(self, channel: grpc.aio.Channel, metadata: CallMetadata, timeout_s: float) -> None:
        """`timeout_s` is the deadline of warming."""
        self._stub = CacheServiceStub(channel)
        self._metadata = metadata
        self._timeout_s = timeout_s

    async def lookup(self, prompt: Prompt, *, model: str = "", partition: str = "") -> CachedPrefix:
        """How much of a prompt is cached; does not count as a use of it."""
        message = messages.lookup_message(prompt, model, partition)
        with api_errors():
            response = await self._stub.LookupPrefix(message, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return messages.prefix_of(response)

    async def warm(
        self, prompt: Prompt, *, model: str = "", partition: str = "", hints: CacheHints = NO_HINTS
    ) -> Usage:
        """Computes a prompt and stores its blocks."""
        message = messages.warm_message(prompt, model, partition, hints)
        with api_errors():
            response = await self._stub.WarmPrefix(message, timeout=self._timeout_s, metadata=self._metadata)
        return usage_of(response.usage)

    async def pin(self, prompt: Prompt, ttl_s: float, *, name: str = "", model: str = "", partition: str = "") -> Pin:
        """Keeps a prompt's cached full blocks from eviction for `ttl_s`; ApiConflictError where nothing is cached.

        Is not retried by itself: a second call would be a second pin.
        """
        message = messages.pin_message(prompt, ttl_s, name, model, partition)
        with api_errors():
            response = await self._stub.PinPrefix(message, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return messages.pin_of(response.pin)

    async def unpin(self, pin_id: str) -> bool:
        """Ends a pin; False where the tenant has none of that id. ApiUnavailableError: it may still stand somewhere."""
        with api_errors():
            response = await self._stub.UnpinPrefix(
                pb.UnpinPrefixRequest(pin_id=pin_id), timeout=CALL_TIMEOUT_S, metadata=self._metadata
            )
        return response.was_pinned

    async def pins(self) -> tuple[Pin, ...]:
        """All pins of the tenant, those that end first come first. ApiUnavailableError: some may be missing."""
        with api_errors():
            response = await self._stub.ListPins(pb.ListPinsRequest(), timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        return tuple(messages.pin_of(each) for each in response.pins)

    async def purge(self, scope: PurgeScope) -> Purged:
        """Forgets what is cached in a scope. Nothing of it can be reached through the router that was called when it
        returns. ApiNotFoundError for a model that nobody serves."""
        with api_errors():
            response = await self._stub.PurgeCache(
                messages.purge_message(scope), timeout=CALL_TIMEOUT_S, metadata=self._metadata
            )
        return messages.purged_of(response)
