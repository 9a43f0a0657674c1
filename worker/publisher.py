"""Tells the cluster that this worker lives and what it holds: renews its lease, writes block events to the index.

Both stores are hints that can be rebuilt: while one is out of reach nothing waits and nothing fails. Events that could
not be written are dropped, and the index is replaced from the mirror as soon as it answers; so it is after a renewal
that found no lease, since the store may have lost everything (restart, expiry while this process was stopped).
Runs on the worker's event loop, which owns all its state. Knows no Redis and no engine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import structlog

from cache_store.events import BlockEvent
from cache_store.index import IndexUnavailableError, IndexWriter
from cache_store.meter_store import MeterStore
from cache_store.registry import RENEW_S, RegistryUnavailableError, RegistryWriter, Renewal, WorkerRecord
from worker.mirror import IndexMirror
from worker.quota_watch import QuotaSource

LEAVE_TIMEOUT_S = 2.0
"""Deadline of the last words of a worker."""

PROBE_S = 5.0
"""How often an index without new events is asked whether it lost some."""

SWEEP_S = 60.0
"""How often dead workers' leftovers are looked for."""

MAX_WAITING = 10_000
"""Events that wait for a slow write; beyond it the index is replaced as a whole."""

BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 2.0

_log = structlog.get_logger(__name__)


class IndexState(StrEnum):
    """How the index stands to the mirror."""

    STALE = "stale"
    """To be replaced before anything is added to it."""
    CURRENT = "current"
    """As the mirror, but for events that wait."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Where a worker publishes, and how to let go of it."""

    index: IndexWriter
    registry: RegistryWriter
    quotas: QuotaSource
    sweep: Callable[[], Awaitable[None]]
    """Removes some of what dead workers left. Raises IndexUnavailableError."""
    close: Callable[[], Awaitable[None]]
    meter: MeterStore
    """What its blocks were used for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is done, in seconds."""

    renew_s: float = RENEW_S
    probe_s: float = PROBE_S
    sweep_s: float = SWEEP_S


class Publisher:
    """Publishes one incarnation."""

    def __init__(self, stores: Stores, record: Callable[[], WorkerRecord], pace: Pace = Pace()) -> None:
        self._stores = stores
        self._record = record
        self._pace = pace
        self._incarnation = record().incarnation
        self._mirror = IndexMirror()
        self._waiting: list[BlockEvent] = []
        self._state = IndexState.STALE
        self._reachable = True
        self._wake_index = asyncio.Event()
        self._wake_lease = asyncio.Event()

    @property
    def index_state(self) -> IndexState:
        """Whether the index follows the mirror."""
        return self._state

    @property
    def num_waiting(self) -> int:
        """Events that are still to be written: at most MAX_WAITING, and none while the index is stale."""
        return len(self._waiting)

    def offer(self, events: Sequence[BlockEvent]) -> None:
        """Takes events of the engine; never blocks. Raises EventGapError."""
        self._mirror.apply(events)
        if self._state is not IndexState.CURRENT:
            return
        self._waiting.extend(events)
        self._wake_index.set()
        if len(self._waiting) > MAX_WAITING:
            self._mark_stale()

    def renew_soon(self) -> None:
        """Publishes a changed record without waiting for the next renewal."""
        self._wake_lease.set()

    async def run(self) -> None:
        """Publishes until it is cancelled.

        Raises SupersededError where a newer incarnation has taken the worker's id.
        """
        loops = [asyncio.ensure_future(loop) for loop in (self._keep_lease(), self._keep_index(), self._keep_tidy())]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def leave(self) -> None:
        """Ends the lease and forgets the index, as far as the stores can be reached. Call after `run` was cancelled."""
        record = self._record()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._stores.registry.leave(record.worker_id, self._incarnation)
                await self._stores.index.drop(self._incarnation)
        except (RegistryUnavailableError, IndexUnavailableError, TimeoutError) as error:
            _log.warning("leave_failed", reason=str(error) or "timeout")  # the lease runs out by itself

    async def _keep_lease(self) -> None:
        while True:
            try:
                renewal = await self._stores.registry.renew(self._record())
            except RegistryUnavailableError as error:
                self._note_unreachable("registry", error)
            else:
                if renewal is Renewal.NEW:
                    self._mark_stale()
                self._note_reachable()
            await _wait(self._wake_lease, self._pace.renew_s)
            self._wake_lease.clear()

    async def _keep_index(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                await self._write()
            except IndexUnavailableError as error:
                self._mark_stale()
                self._note_unreachable("index", error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MOST_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            await _wait(self._wake_index, self._pace.probe_s)

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(self._pace.sweep_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads the workers out
            try:
                await self._stores.sweep()
            except IndexUnavailableError as error:
                self._note_unreachable("index", error)

    async def _write(self) -> None:
        """Brings the index up to the mirror. Events that come meanwhile set the flag again.

        Without events the index still tells whether it lost writes, by IndexUnavailableError.
        """
        self._wake_index.clear()
        if self._state is IndexState.STALE:
            self._waiting.clear()
            self._state = IndexState.CURRENT  # as of this snapshot; what follows waits behind it
            await self._stores.index.replace(self._incarnation, self._mirror.snapshot())
        else:
            events, self._waiting = self._waiting, []
            await self._stores.index.apply(self._incarnation, events)

    def _mark_stale(self) -> None:
        self._state = IndexState.STALE
        self._waiting.clear()
        self._wake_index.set()

    def _note_unreachable(self, store: str, error: Exception) -> None:
        if self._reachable:
            self._reachable = False
            _log.warning("store_unreachable", store=store, reason=str(error) or "timeout")

    def _note_reachable(self) -> None:
        if not self._reachable:
            self._reachable = True
            _log.info("store_reachable")


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Waits for `event`, at most `timeout_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
