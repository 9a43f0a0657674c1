"""Between the client's values and the messages of the cache service. Knows nothing of channels."""

from __future__ import annotations

import uuid

from stemcache.v1 import cache_pb2 as pb

from services.client.cache_results import BlocksByTier, CachedPrefix, Pin, Purged
from services.client.messages import by_tier_of, duration_message, policy_message, prompt_message
from services.client.purge_scope import PurgeScope, fill_scope
from services.client.requests import CacheHints, CacheMode, Prompt


def lookup_message(prompt: Prompt, model: str, partition: str) -> pb.LookupPrefixRequest:
    """The message of a lookup."""
    return pb.LookupPrefixRequest(model=model, prompt=prompt_message(prompt), partition=partition)


def warm_message(prompt: Prompt, model: str, partition: str, hints: CacheHints) -> pb.WarmPrefixRequest:
    """The message of a warming, with an id: a retried call must name the same request."""
    return pb.WarmPrefixRequest(
        request_id=uuid.uuid4().hex,
        model=model,
        prompt=prompt_message(prompt),
        cache_policy=policy_message(CacheMode.READ_WRITE, partition, hints),
    )


def pin_message(prompt: Prompt, ttl_s: float, name: str, model: str, partition: str) -> pb.PinPrefixRequest:
    """The message of a pin."""
    return pb.PinPrefixRequest(
        model=model,
        prompt=prompt_message(prompt),
        partition=partition,
        ttl=duration_message(ttl_s),
        display_name=name,
    )


def purge_message(scope: PurgeScope) -> pb.PurgeCacheRequest:
    """The message of a purge."""
    message = pb.PurgeCacheRequest()
    fill_scope(message, scope)
    return message


def purged_of(message: pb.PurgeCacheResponse) -> Purged:
    """The value of an answer to a purge."""
    return Purged(
        purge_unix_s=message.purge_time.ToNanoseconds() / 1e9,
        acknowledged_workers=message.acknowledged_workers,
        pending_workers=message.pending_workers,
        purged_blocks=blocks_of(message.purged_blocks),
        complete_unix_s=message.complete_time.ToNanoseconds() / 1e9,
        uncounted_workers=message.uncounted_workers,
    )


def blocks_of(message: pb.BlocksByTier) -> BlocksByTier:
    """The value of counts of blocks."""
    return BlocksByTier(message.device_blocks, message.host_blocks, message.disk_blocks)


def prefix_of(message: pb.LookupPrefixResponse) -> CachedPrefix:
    """The value of an answer to a lookup."""
    return CachedPrefix(
        message.prompt_tokens, message.matched_tokens, message.matched_blocks, by_tier_of(message.matched_by_tier)
    )


def pin_of(message: pb.Pin) -> Pin:
    """The value of a pin."""
    return Pin(
        pin_id=message.pin_id,
        name=message.display_name,
        model=message.model,
        num_blocks=message.block_count,
        size_bytes=message.size_bytes,
        expires_unix_s=message.expire_time.ToNanoseconds() / 1e9,
        num_workers=message.worker_count,
    )
