"""A tenant's cache through both clients, against a real gRPC server."""

from __future__ import annotations

import pytest
from stemcache.v1 import cache_pb2 as pb

from services.client import (
    ApiConflictError,
    ApiUnavailableError,
    AsyncStemcacheClient,
    BlocksByTier,
    CachedPrefix,
    CacheHints,
    Pin,
    Purged,
    PurgeEverything,
    PurgeModel,
    PurgePartition,
    PurgeScope,
    StemcacheClient,
    Tokens,
)
from tests.support.scripted_api import UNAVAILABLE, Failure, ScriptedApi

PIN = Pin("pin-1", "n", "m", 6, 3 << 20, 0.0, 0)


def test_all_calls(api: ScriptedApi) -> None:
    with StemcacheClient(api.address, "key") as client:
        assert client.cache.lookup("text", model="m", partition="p") == CachedPrefix(100, 99, 6)
        assert client.cache.warm("text", hints=CacheHints("s", ttl_s=60)).computed_tokens == 68
        assert client.cache.pin(Tokens((1,)), 1.5, name="n", model="m", partition="p") == PIN
        assert client.cache.pins() == (PIN,)
        assert client.cache.unpin("pin-1")
        assert not client.cache.unpin("other")
    _check_requests(api)


async def test_all_calls_by_asyncio(api: ScriptedApi) -> None:
    async with AsyncStemcacheClient(api.address, "key") as client:
        assert await client.cache.lookup("text", model="m", partition="p") == CachedPrefix(100, 99, 6)
        assert (await client.cache.warm("text", hints=CacheHints("s", ttl_s=60))).computed_tokens == 68
        assert await client.cache.pin(Tokens((1,)), 1.5, name="n", model="m", partition="p") == PIN
        assert await client.cache.pins() == (PIN,)
        assert await client.cache.unpin("pin-1")
    _check_requests(api)


PURGED = Purged(1_700_000_000, 2, 1, BlocksByTier(5, 3, 2), 1_700_000_010, 1)
SCOPES = [
    (PurgeEverything(), pb.PurgeCacheRequest(everything=True)),
    (PurgePartition(""), pb.PurgeCacheRequest(partition="")),
    (PurgeModel("m"), pb.PurgeCacheRequest(model="m")),
]


@pytest.mark.parametrize(("scope", "message"), SCOPES)
async def test_a_purge_names_its_scope(api: ScriptedApi, scope: PurgeScope, message: pb.PurgeCacheRequest) -> None:
    with StemcacheClient(api.address, "key") as client:
        assert client.cache.purge(scope) == PURGED
    async with AsyncStemcacheClient(api.address, "key") as other:
        assert await other.cache.purge(scope) == PURGED
    assert api.cache_requests == [message, message]


def _check_requests(api: ScriptedApi) -> None:
    lookup, warm, pin = api.cache_requests[:3]
    assert isinstance(lookup, pb.LookupPrefixRequest)
    assert (lookup.model, lookup.partition, lookup.prompt.text) == ("m", "p", "text")
    assert isinstance(warm, pb.WarmPrefixRequest)
    assert (warm.cache_policy.session_id, warm.cache_policy.ttl.ToSeconds()) == ("s", 60)
    assert warm.request_id
    assert isinstance(pin, pb.PinPrefixRequest)
    assert (pin.ttl.ToMilliseconds(), pin.display_name, pin.partition) == (1_500, "n", "p")
    assert api.metadata["authorization"] == "Bearer key"


def test_what_may_be_repeated_is_retried(api: ScriptedApi) -> None:
    with StemcacheClient(api.address, "key") as client:
        for call in (
            lambda: client.cache.lookup("t"),
            lambda: client.cache.warm("t"),
            client.cache.pins,
            lambda: client.cache.unpin("pin-1"),
            lambda: client.cache.purge(PurgeEverything()),
        ):
            api.failures = [UNAVAILABLE]
            call()
    warmed = [each.request_id for each in api.cache_requests if isinstance(each, pb.WarmPrefixRequest)]
    assert len(warmed) == 2
    assert len(set(warmed)) == 1


def test_a_pin_is_not_made_twice(api: ScriptedApi) -> None:
    api.failures = [UNAVAILABLE]
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiUnavailableError):
        client.cache.pin("text", 60)
    assert len(api.cache_requests) == 1


def test_nothing_cached_is_a_conflict_with_what_to_do(api: ScriptedApi) -> None:
    api.failures = [Failure(9, "warm it first")]
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiConflictError, match="warm it first"):
        client.cache.pin("text", 60)
