"""What tenants' blocks have cost: blocks × time by tier, and evictions. Knows no engine; owned by the event loop.

Read off what the engine says of its tenants now and then: between two readings a tenant has what it had at the first.
The sum over all tenants is what the pools had in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.meter_writer import MeterPace
from cache_store.metered import Counts, Metered
from cache_store.usage import TenantUse

METER_PACE = MeterPace(gather_s=0.5, write_s=5.0)
"""A worker that is killed has not told of its last seconds."""

_BLOCKS = (Metered.DEVICE_BLOCK_MS, Metered.HOST_BLOCK_MS, Metered.DISK_BLOCK_MS)
_EVICTIONS = (Metered.EVICTED, Metered.EVICTED_FOR_OTHERS, Metered.CAUSED)


class BlockMeter:
    """Of one worker."""

    def __init__(self, clock: Clock, usage: Callable[[], Sequence[TenantUse]]) -> None:
        """`usage`: who has what now, all tenants."""
        self._clock = clock
        self._usage = usage
        self._read_ms = self._now_ms()
        self._blocks: dict[TenantId, tuple[int, ...]] = {}
        self._evictions: dict[TenantId, tuple[int, ...]] = {}

    def take(self) -> list[tuple[TenantId, Counts]]:
        """What came together since the last call."""
        now_ms = self._now_ms()
        passed_ms, self._read_ms = now_ms - self._read_ms, now_ms
        taken: dict[TenantId, Counter[Metered]] = {}
        for tenant, blocks in self._blocks.items():
            taken[tenant] = Counter({kind: number * passed_ms for kind, number in zip(_BLOCKS, blocks, strict=True)})
        uses = self._usage()
        for use in uses:
            now = _evictions(use)
            before = self._evictions.get(use.tenant, (0,) * len(now))
            if any(new < old for new, old in zip(now, before, strict=True)):
                before = (0,) * len(now)  # its account was closed and opened again
            grown = {kind: new - old for kind, new, old in zip(_EVICTIONS, now, before, strict=True)}
            taken.setdefault(use.tenant, Counter()).update(grown)
        self._evictions = {use.tenant: _evictions(use) for use in uses}
        self._blocks = {use.tenant: (use.used_blocks, use.host_blocks, use.disk_blocks) for use in uses}
        return [(tenant, +counts) for tenant, counts in taken.items() if any(counts.values())]

    def _now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1_000)


def _evictions(use: TenantUse) -> tuple[int, ...]:
    return (use.evicted_blocks, use.evicted_for_others, use.caused_evictions)
