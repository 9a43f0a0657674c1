"""What tenants have used, read from the store of all routers and workers. Owns no state but a bound on readers."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.meter_store import MeterStore, MeterUnavailableError
from cache_store.meter_writer import MeterWriter
from cache_store.metered import HOUR_S, RETAINED_HOURS, Metered, hour_of

MAX_READERS = 4
"""At once: a report of all hours is some hundred reads."""

RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """Hours from `first` to `end`, exclusive."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What one tenant used."""

    hours: Mapping[int, Counter[Metered]]
    """Those in which it used something, oldest first."""

    @property
    def total(self) -> Counter[Metered]:
        """Over all hours."""
        return sum(self.hours.values(), start=Counter())


NOTHING = Usage({})


class UsageReports:
    """Over both spaces of the store."""

    def __init__(self, requests: MeterStore, blocks: MeterStore, writer: MeterWriter, clock: Clock) -> None:
        """`writer` is this router's: what it has counted is written before anything is read."""
        self._spaces = (requests, blocks)
        self._writer = writer
        self._clock = clock
        self._readers = asyncio.Semaphore(MAX_READERS)

    def span(self, since_unix_s: float | None, until_unix_s: float | None) -> Span:
        """Hours between two points in time, as far as they are kept. Raises InvalidRequestError."""
        now_s = self._clock.unix_s()
        if since_unix_s is not None and until_unix_s is not None and since_unix_s >= until_unix_s:
            raise InvalidRequestError("until_time", "until_time is not after since_time; name a later one")
        end_s = now_s if until_unix_s is None else min(until_unix_s, now_s)
        oldest = hour_of(now_s) - RETAINED_HOURS
        first = oldest if since_unix_s is None else max(oldest, hour_of(since_unix_s))
        return Span(first, max(first, math.ceil(end_s / HOUR_S)))

    async def of(self, tenant: TenantId, span: Span) -> Usage:
        """What a tenant used. Raises UnavailableError."""
        return (await self._read(span, tenant)).get(tenant, NOTHING)

    async def all(self, span: Span) -> Mapping[TenantId, Usage]:
        """What all tenants used, those that were deleted included. Raises UnavailableError."""
        return await self._read(span, None)

    async def _read(self, span: Span, tenant: TenantId | None) -> dict[TenantId, Usage]:
        found: dict[TenantId, dict[int, Counter[Metered]]] = {}
        async with self._readers:
            self._writer.gather()
            await self._writer.write()
            for space in self._spaces:
                try:
                    lines = await space.read(span.first, span.end, tenant)
                except MeterUnavailableError as error:
                    raise UnavailableError(f"usage cannot be read now: {error}", RETRY_AFTER_S) from error
                for line in lines:
                    found.setdefault(line.tenant, {}).setdefault(line.hour, Counter()).update(line.counts)
        return {each: Usage(dict(sorted(hours.items()))) for each, hours in found.items()}
