"""What running out of blocks has led to, and who has which blocks: values for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.domain import TenantId


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


NO_PRESSURE = Pressure()


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
