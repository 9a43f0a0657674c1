"""What the server answers about a tenant's cache, as values that know nothing of protobuf."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """How much of a prompt a request would reuse now: the longest match on any worker."""

    prompt_tokens: int
    matched_tokens: int
    matched_blocks: int
    """Full blocks of them."""


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
