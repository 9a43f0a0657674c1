"""What running out of blocks has led to, and who has which blocks: values for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cache_store.domain import TenantId
from cache_store.tier_kind import TierKind


@dataclass(frozen=True, slots=True)
class Pressure:
    """Counts since a worker started, in the order in which it resorts to them."""

    lent_back_blocks: int = 0
    """Taken back from tenants that had borrowed them, for one below its guarantee."""
    evicted_blocks: int = 0
    """Cached blocks that made room, those lent back included."""
    stopped_admissions: int = 0
    """Steps in which a request had to wait because there were no blocks for it."""
    preemptions: int = 0
    yielded_pins: int = 0
    """Pins ended before their time."""
    refused_requests: int = 0
    """Requests that could never fit."""
    demoted_blocks: int = 0
    """Of the evicted blocks, those that went to a lower tier."""
    expired_blocks: int = 0
    """Of the evicted blocks, those whose time to live was over."""
    trimmed_blocks: int = 0
    """Of the evicted blocks, those that went since their tenant had reached its own maximum."""


NO_PRESSURE = Pressure()


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """Checks of cached keys and values against computed ones, since a worker started."""

    checked_blocks: int = 0
    mismatches: int = 0
    """Alarms: blocks that differed, and were put out of use with all that followed them."""
    skipped_hits: int = 0
    """Chosen for a check that could not be made, or not to its end."""


NO_AUDITS = AuditCounts()


@dataclass(frozen=True, slots=True)
class PeerCounts:
    """Blocks that workers gave each other, since this one started."""

    fetched_blocks: int = 0
    """That came from another worker and were taken in."""
    fetched_bytes: int = 0
    served_blocks: int = 0
    """That were sent to another one."""
    served_bytes: int = 0
    fetches: int = 0
    failed_fetches: int = 0
    """Of them, those that ended before their time, or brought nothing."""
    refused_blocks: int = 0
    """That came and were not what was asked for: nothing of them is used."""
    declined_fetches: int = 0
    """Where computing was the faster."""


NO_PEERS = PeerCounts()


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One tenant's blocks in one pool."""

    tenant: TenantId
    guaranteed_blocks: int
    max_blocks: int
    used_blocks: int
    """Held or cached."""
    held_blocks: int
    """By running requests and pins."""
    lent_blocks: int
    """Of its guarantee, used by others now."""
    evicted_blocks: int
    """Since the worker started."""
    pinned_blocks: int = 0
    waiting_requests: int = 0
    host_blocks: int = 0
    """In the host's memory."""
    disk_blocks: int = 0
    evicted_for_others: int = 0
    """Of `evicted_blocks`, those that made room for other tenants."""
    caused_evictions: int = 0
    """Other tenants' blocks that were evicted to make room for it, since the worker started."""

    def plus(self, other: TenantUse) -> TenantUse:
        """Both together, under the name of the first."""
        names = [each.name for each in fields(TenantUse)[1:]]
        return TenantUse(self.tenant, *(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class TierLoad:
    """A tier below the device; counts since the worker's start."""

    tier: TierKind
    num_blocks: int
    """Capacity."""
    used_blocks: int
    stored_blocks: int = 0
    """Written to it."""
    loaded_blocks: int = 0
    """Read back to the device."""
    evicted_blocks: int = 0
    dropped_blocks: int = 0
    """That were not worth being written to it, or had no room."""
    failed_blocks: int = 0
    """Writes and reads that failed: torn or foreign bytes, a full disk."""
    load_block_s: float = 0.0
    """Measured seconds to read one block back; 0 before the first measurement."""


@dataclass(frozen=True, slots=True)
class WindowLoad:
    """Slots of a group of sliding layers that has fewer of them than there are blocks."""

    window: int
    """Tokens that its layers read."""
    used_slots: int
    """Held by running requests, or cached."""
    total_slots: int
    cached_slots: int
    """Of those used: kept for later hits or pins."""
    max_cached_slots: int


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Reused tokens by the tier where they lay."""

    device: int = 0
    host: int = 0
    disk: int = 0
    peer: int = 0
    """At another worker."""

    @property
    def total(self) -> int:
        """Of all tiers."""
        return self.device + self.host + self.disk + self.peer
