"""Tells the cluster that this worker lives and what it holds: renews its lease, writes block events to the index.

Both stores are hints that can be rebuilt: while one is out of reach nothing waits and nothing fails. Events that could
not be written are dropped, and the index is replaced from the mirror as soon as it answers; so it is after a renewal
that found no lease, since the store may have lost everything (restart, expiry while this process was stopped).
Runs on the worker's event loop, which owns all its state. Knows no Redis and no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from cache_store.events import BlockEvent
from cache_store.index import IndexUnavailableError, IndexWriter
from cache_store.registry import RENEW_S, RegistryUnavailableError, RegistryWriter, Renewal, WorkerRecord
from worker.mirror import IndexMirror

WRITE_TIMEOUT_S = 2.0
"""Deadline of one write to the index."""

RENEW_TIMEOUT_S = 1.0
"""Deadline of one renewal: well inside the lease."""

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
    close: Callable[[], Awaitable[None]]


class Publisher:
    """Publishes one incarnation."""

    def __init__(
        self, index: IndexWriter, registry: RegistryWriter, record: Callable[[], WorkerRecord], renew_s: float = RENEW_S
    ) -> None:
        self._index = index
        self._registry = registry
        self._record = record
        self._renew_s = renew_s
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
        """Events that are still to be written; bounded, since none wait while the index is stale."""
        return len(self._waiting)

    def offer(self, events: Sequence[BlockEvent]) -> None:
        """Takes events of the engine; never blocks. Raises EventGapError."""
        self._mirror.apply(events)
        if self._state is IndexState.CURRENT:
            self._waiting.extend(events)
            self._wake_index.set()

    def renew_soon(self) -> None:
        """Publishes a changed record without waiting for the next renewal."""
        self._wake_lease.set()

    async def run(self) -> None:
        """Publishes until it is cancelled; returns for no other reason."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_lease())
            tasks.create_task(self._keep_index())

    async def leave(self) -> None:
        """Ends the lease and forgets the index, as far as the stores can be reached. Call after `run` was cancelled."""
        record = self._record()
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._registry.leave(record.worker_id, self._incarnation)
                await self._index.drop(self._incarnation)
        except (RegistryUnavailableError, IndexUnavailableError, TimeoutError) as error:
            _log.warning("leave_failed", reason=str(error) or "timeout")  # the lease runs out by itself

    async def _keep_lease(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RENEW_TIMEOUT_S):
                    renewal = await self._registry.renew(self._record())
            except (RegistryUnavailableError, TimeoutError) as error:
                self._note_unreachable("registry", error)
            else:
                if renewal is Renewal.NEW:
                    self._mark_stale()
                self._note_reachable()
            await _wait(self._wake_lease, self._renew_s)

    async def _keep_index(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._write()
            except (IndexUnavailableError, TimeoutError) as error:
                self._mark_stale()
                self._note_unreachable("index", error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MOST_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            await self._wake_index.wait()

    async def _write(self) -> None:
        """Brings the index up to the mirror. Events that come meanwhile set the flag again."""
        self._wake_index.clear()
        if self._state is IndexState.STALE:
            self._waiting.clear()
            self._state = IndexState.CURRENT  # as of this snapshot; what follows waits behind it
            await self._index.replace(self._incarnation, self._mirror.snapshot())
        elif self._waiting:
            events, self._waiting = self._waiting, []
            await self._index.apply(self._incarnation, events)

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
    """Waits for `event`, at most `timeout_s`, and clears it."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()
