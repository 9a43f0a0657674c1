"""What the server answers about a tenant's cache, as values that know nothing of protobuf."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.client.results import CachedByTier


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """How much of a prompt a request would reuse now: the longest match on any worker."""

    prompt_tokens: int
    matched_tokens: int
    matched_blocks: int
    """Full blocks of them."""
    matched_by_tier: CachedByTier = field(default_factory=CachedByTier)


@dataclass(frozen=True, slots=True)
class BlocksByTier:
    """Blocks by the tier where they lay."""

    device: int
    host: int
    disk: int

    @property
    def total(self) -> int:
        """Of all tiers."""
        return self.device + self.host + self.disk


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did."""

    purge_unix_s: float
    """From then on requests to the router that was called reach nothing of it."""
    acknowledged_workers: int
    """That have forgotten it."""
    pending_workers: int
    """That did not answer: they forget it before they serve the tenant again."""
    purged_blocks: BlocksByTier
    """Of the workers that acknowledged."""
    complete_unix_s: float
    """When it is complete everywhere, also where nobody could be reached."""
    uncounted_workers: int
    """Of those that acknowledged, the ones in the middle of a long step: their blocks are not counted."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that is kept from eviction."""

    pin_id: str
    name: str
    model: str
    num_blocks: int
    """On each worker that has it."""
    size_bytes: int
    """Of keys and values, over all workers."""
    expires_unix_s: float
    num_workers: int
