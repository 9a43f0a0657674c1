"""What was known of a prompt's blocks when it was planned, as far as it explains hits and misses later.

Numbers and ages only; no digests, tokens or texts. Owned by the planner.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.departures import Departures
from cache_store.digest import DIGEST_BYTES
from cache_store.domain import Domain, DomainTag, FormatDigest
from services.router.generation import CacheMode

MAX_NAMES = 4_096
"""Tenants' partitions and models whose domain is remembered."""

_Name = tuple[str, str, str, FormatDigest]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one prompt in one KV format."""

    kv_format: FormatDigest
    block_size: int
    num_blocks: int
    """Full blocks of the prompt."""
    num_held: int
    """Leading ones that some worker of the format holds, or will soon."""
    evicted_ago_s: float | None
    """Since the first one that nobody holds was evicted somewhere; None: not known to have been."""
    purged_ago_s: float | None
    """Since the partition was purged; None: not since this router first saw it."""
    num_evicted: int = 0
    """Blocks after the held ones that are known to have been evicted, up to the first that is not."""


@dataclass(frozen=True, slots=True)
class Outlooks:
    """Of one prompt."""

    cache_mode: CacheMode
    is_stale: bool
    """Control data was too old for reuse."""
    formats: tuple[Outlook, ...]
    """None where the cache was not read."""


class OutlookMaker:
    """Remembers which domains were in use, so that a purge shows."""

    def __init__(self, departures: Departures, clock: Clock) -> None:
        self._departures = departures
        self._clock = clock
        self._domains: OrderedDict[_Name, tuple[DomainTag, float | None]] = OrderedDict()

    def make(self, domain: Domain, chain: bytes, block_size: int, num_held: int) -> Outlook:
        """`chain`: packed digests of the prompt's full blocks."""
        num_blocks = len(chain) // DIGEST_BYTES
        missing = chain[num_held * DIGEST_BYTES : (num_held + 1) * DIGEST_BYTES]
        evicted_ago_s = self._departures.age_s(domain.tag, missing) if missing else None
        return Outlook(
            kv_format=domain.kv_format,
            block_size=block_size,
            num_blocks=num_blocks,
            num_held=num_held,
            evicted_ago_s=evicted_ago_s,
            purged_ago_s=self._purged_ago_s(domain),
            num_evicted=0 if evicted_ago_s is None else self._departures.leading(domain.tag, chain, num_held),
        )

    def _purged_ago_s(self, domain: Domain) -> float | None:
        name = (domain.tenant, domain.partition, domain.model, domain.kv_format)
        now_s = self._clock.monotonic_s()
        tag, purged_s = self._domains.pop(name, (domain.tag, None))
        if tag != domain.tag:
            purged_s = now_s
        self._domains[name] = (domain.tag, purged_s)
        if len(self._domains) > MAX_NAMES:
            self._domains.popitem(last=False)
        return None if purged_s is None else now_s - purged_s
