"""What an operator looks at: workers, tenants by tier, and how it went lately, as one value.

Both live views, in the terminal and in the browser, show this. Pure: where it comes from and how it looks is theirs to
know. Names in it were chosen by others and may hold anything.
"""

from __future__ import annotations

from dataclasses import dataclass

Rate = float | None
"""Part of prompt tokens that was reused, 0 to 1; None where there were no prompts."""


@dataclass(frozen=True, slots=True)
class TierPart:
    """One tenant's part of one tier, all workers together, in blocks."""

    tier: str
    guaranteed_blocks: int
    max_blocks: int
    used_blocks: int
    held_blocks: int
    """Of those used, by running requests and pins; on the device only."""
    pinned_blocks: int
    lent_blocks: int | None
    """Of the guarantee, used by others now; None below the device, where it is not counted."""

    @property
    def borrowed_blocks(self) -> int:
        """Used beyond the guarantee."""
        return max(0, self.used_blocks - self.guaranteed_blocks)


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant."""

    name: str
    tiers: tuple[TierPart, ...]
    """From the device downwards."""
    waiting_requests: int
    requests_per_s: float
    hit_rate: Rate
    hit_rates: tuple[Rate, ...]
    """Oldest first; each over the samples just before it."""
    evicted_blocks: int
    """Since the workers' start."""
    evicted_per_s: float


@dataclass(frozen=True, slots=True)
class TierUse:
    """One tier of one worker, in blocks."""

    tier: str
    used_blocks: int
    total_blocks: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker."""

    worker_id: str
    model: str
    address: str
    running_requests: int
    max_running: int
    waiting_requests: int
    tiers: tuple[TierUse, ...]
    """From the device downwards."""
    prefill_tokens_per_s: float
    evicted_blocks: int
    """Since its start."""
    evicted_per_s: float
    preemptions: int
    """Since its start."""
    marks: tuple[str, ...]
    """What is not as it should be, in words."""


@dataclass(frozen=True, slots=True)
class Trends:
    """How it went, oldest first, one number per sample."""

    hit_rates: tuple[Rate, ...] = ()
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    evicted_per_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A system as one router sees it."""

    version: str
    taken_unix_s: float
    marks: tuple[str, ...]
    """What is not as it should be, in words; nothing where all is well."""
    running_requests: int
    waiting_requests: int
    requests_per_s: float
    hit_rate: Rate
    window_s: float
    """What the rates are over; 0: the hit rates since the router's start, and no others."""
    evicted_per_s: float
    workers: tuple[WorkerView, ...]
    """By name."""
    tenants: tuple[TenantView, ...]
    """Those with most blocks first."""
    tenants_left_out: int
    """More of them than are shown."""
    trends: Trends
