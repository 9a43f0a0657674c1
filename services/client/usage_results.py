"""What was used, as values and from messages. Knows both APIs' usage messages, no channel."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp
from stemcache.admin.v1 import usage_pb2 as admin_pb
from stemcache.v1 import usage_pb2 as pb

from services.client.results import CachedByTier


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """What was used in some time."""

    completed_requests: int
    cancelled_requests: int
    expired_requests: int
    refused_requests: int
    failed_requests: int
    prompt_tokens: int
    """Of requests whose answer began."""
    cached_tokens: int
    """Of them reused."""
    cached_by_tier: CachedByTier
    computed_tokens: int
    """Of prompt_tokens, those that were not reused."""
    generated_tokens: int
    recomputed_tokens: int
    """Computed again after preemptions; part of nothing else."""
    saved_s: float
    """Of prefill, estimated."""
    device_block_s: float
    """Blocks held or cached × seconds."""
    host_block_s: float
    disk_block_s: float

    @property
    def num_requests(self) -> int:
        """However they ended."""
        ended_well = self.completed_requests
        return (
            ended_well + self.cancelled_requests + self.expired_requests + self.refused_requests + self.failed_requests
        )


@dataclass(frozen=True, slots=True)
class EvictionCounts:
    """Cached blocks that left the device, and what of it tenants took from each other."""

    evicted_blocks: int
    suffered_blocks: int
    caused_blocks: int


@dataclass(frozen=True, slots=True)
class UsageHour:
    """One hour of one tenant."""

    start_unix_s: float
    counts: UsageCounts
    evictions: EvictionCounts | None
    """None: not told, as to tenants."""


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """One tenant."""

    tenant: str
    """Its name; empty: the caller."""
    counts: UsageCounts
    evictions: EvictionCounts | None
    hours: tuple[UsageHour, ...]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """All tenants that were asked for."""

    tenants: tuple[TenantUsage, ...]
    total: UsageCounts
    total_evictions: EvictionCounts | None


def own_usage_of(response: pb.GetUsageResponse) -> TenantUsage:
    """What the caller used."""
    hours = tuple(UsageHour(_seconds(each.start_time), counts_of(each.counts), None) for each in response.hours)
    return TenantUsage("", counts_of(response.total), None, hours)


def report_of(response: admin_pb.GetUsageResponse) -> UsageReport:
    """What tenants used."""
    return UsageReport(
        tenants=tuple(
            TenantUsage(
                tenant=each.tenant,
                counts=counts_of(each.counts),
                evictions=_evictions(each.evictions),
                hours=tuple(
                    UsageHour(_seconds(hour.start_time), counts_of(hour.counts), _evictions(hour.evictions))
                    for hour in each.hours
                ),
            )
            for each in response.tenants
        ),
        total=counts_of(response.total),
        total_evictions=_evictions(response.total_evictions),
    )


def counts_of(message: pb.UsageCounts) -> UsageCounts:
    """Counts as values."""
    requests, tiers, blocks = message.requests, message.cached_by_tier, message.block_seconds
    return UsageCounts(
        completed_requests=requests.completed,
        cancelled_requests=requests.cancelled,
        expired_requests=requests.expired,
        refused_requests=requests.refused,
        failed_requests=requests.failed,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        cached_by_tier=CachedByTier(tiers.device_tokens, tiers.host_tokens, tiers.disk_tokens, tiers.peer_tokens),
        computed_tokens=message.computed_tokens,
        generated_tokens=message.generated_tokens,
        recomputed_tokens=message.recomputed_tokens,
        saved_s=message.saved_s,
        device_block_s=blocks.device_block_s,
        host_block_s=blocks.host_block_s,
        disk_block_s=blocks.disk_block_s,
    )


def _evictions(message: admin_pb.EvictionCounts) -> EvictionCounts:
    return EvictionCounts(message.evicted_blocks, message.suffered_blocks, message.caused_blocks)


def _seconds(message: Timestamp) -> float:
    return message.seconds + message.nanos / 1e9
