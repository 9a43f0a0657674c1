"""Brings what a process counted to the store, every few seconds and at its end. Nobody waits for it.

A process that is killed loses what it had counted since the last write: nobody pays for that. While the store is away
counts wait, by hour and tenant. Owned by one event loop; knows no Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.meter_batches import MeterBatch, MeterBatches
from cache_store.meter_store import MeterStore, MeterUnavailableError, MeterWriterId
from cache_store.metered import Counts, hour_of

PROBE_S = 10.0
"""How often a store to which nothing is written is asked whether it lost something."""

LAST_WRITE_S = 2.0
"""Deadline of the last write of a process."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MeterPace:
    """How often what is done, in seconds."""

    gather_s: float
    """How often the source is asked."""
    write_s: float


class MeterWriter:
    """Of one process."""

    def __init__(
        self,
        store: MeterStore,
        writer: MeterWriterId,
        source: Callable[[], Iterable[tuple[TenantId, Counts]]],
        clock: Clock,
        pace: MeterPace,
    ) -> None:
        """`source` gives what was counted since it was last asked."""
        self._store = store
        self._writer = writer
        self._source = source
        self._clock = clock
        self._pace = pace
        self._batches = MeterBatches()
        self._turn = asyncio.Lock()
        self._reachable = True
        self._asked_s = clock.monotonic_s()

    async def run(self) -> None:
        """Gathers and writes until it is cancelled."""
        written_s = self._clock.monotonic_s()
        while True:
            await asyncio.sleep(self._pace.gather_s)
            self.gather()
            now_s = self._clock.monotonic_s()
            if now_s - written_s >= self._pace.write_s:
                written_s = now_s
                await self.write()

    def gather(self) -> None:
        """Takes what was counted, into the hour of now."""
        hour = hour_of(self._clock.unix_s())
        for tenant, counts in self._source():
            self._batches.add(hour, tenant, counts)

    async def write(self) -> None:
        """Writes all that waits, as far as the store can be reached."""
        async with self._turn:
            try:
                if not self._batches.has_more and self._clock.monotonic_s() - self._asked_s >= PROBE_S:
                    await self._send(self._batches.last())
                while self._batches.has_more:
                    await self._send(self._batches.next())
            except MeterUnavailableError as error:
                self._note(str(error) or "timeout")
            else:
                self._note(None)

    async def _send(self, batch: MeterBatch | None) -> None:
        if batch is None:
            return
        num_lost = self._batches.num_lost
        self._batches.note_stored(await self._store.add(self._writer, batch))
        self._asked_s = self._clock.monotonic_s()
        if self._batches.num_lost > num_lost:
            _log.warning("usage_lost", batches=self._batches.num_lost - num_lost)

    async def finish(self) -> None:
        """Gathers and writes for the last time."""
        self.gather()
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                await self.write()
        except TimeoutError:
            self._note("timeout")

    def _note(self, problem: str | None) -> None:
        """Logs a change, not every write."""
        if problem is not None and self._reachable:
            _log.warning("usage_store_away", reason=problem)
        if problem is None and not self._reachable:
            _log.info("usage_store_back")
        self._reachable = problem is None
