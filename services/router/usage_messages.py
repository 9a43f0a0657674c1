"""What was used as messages. Holds no state."""

from __future__ import annotations

from collections import Counter

from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.v1 import usage_pb2 as pb

from cache_store.metered import HOUR_S, Metered
from services.router.messages import timestamp


def usage_counts(counts: Counter[Metered]) -> pb.UsageCounts:
    """Counts as both APIs tell them."""
    cached = pb.CachedTokenCounts(
        device_tokens=counts[Metered.CACHED_DEVICE],
        host_tokens=counts[Metered.CACHED_HOST],
        disk_tokens=counts[Metered.CACHED_DISK],
        peer_tokens=counts[Metered.CACHED_PEER],
    )
    return pb.UsageCounts(
        requests=pb.RequestCounts(
            completed=counts[Metered.COMPLETED],
            cancelled=counts[Metered.CANCELLED],
            expired=counts[Metered.EXPIRED],
            refused=counts[Metered.REFUSED],
            failed=counts[Metered.FAILED],
        ),
        prompt_tokens=counts[Metered.PROMPT],
        cached_tokens=cached.device_tokens + cached.host_tokens + cached.disk_tokens + cached.peer_tokens,
        cached_by_tier=cached,
        computed_tokens=counts[Metered.COMPUTED],
        generated_tokens=counts[Metered.GENERATED],
        recomputed_tokens=counts[Metered.RECOMPUTED],
        saved_s=counts[Metered.SAVED_US] / 1e6,
        block_seconds=pb.BlockSeconds(
            device_block_s=counts[Metered.DEVICE_BLOCK_MS] / 1e3,
            host_block_s=counts[Metered.HOST_BLOCK_MS] / 1e3,
            disk_block_s=counts[Metered.DISK_BLOCK_MS] / 1e3,
        ),
    )


def hour_start(hour: int) -> Timestamp:
    """When an hour began."""
    return timestamp(hour * HOUR_S)
