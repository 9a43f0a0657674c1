"""Keeps a router's directory and snapshot level with the store, and the store level with what the router knows.

One task polls the head of the store and reads everything when it changed. What the router has seen never goes back: a
store that lacks some of it, because it was lost, emptied, rolled back or repaired from an older copy, gets it back
before the router goes on. While Redis is away the directory keeps what it has and grows old.
"""

from __future__ import annotations

import asyncio

import structlog

from cache_store.clock import Clock
from cache_store.errors import StemcacheError
from services.tenants.directory import TenantDirectory
from services.tenants.redis_store import ControlStore
from services.tenants.snapshot import SnapshotFile
from services.tenants.state import ControlState
from services.tenants.table import join

POLL_S = 0.5

_log = structlog.get_logger()


class DirectorySync:
    """The task's state, owned by one event loop. `known` is what the snapshot held at start."""

    def __init__(
        self,
        store: ControlStore,
        directory: TenantDirectory,
        snapshot: SnapshotFile,
        known: ControlState,
        clock: Clock,
    ) -> None:
        self._store = store
        self._directory = directory
        self._snapshot = snapshot
        self._clock = clock
        self._known = known
        self._saved = known if snapshot.is_current else None
        self._problem: str | None = None
        self._turn = asyncio.Lock()

    @property
    def problem(self) -> str | None:
        """Why the last poll failed; None where it did not."""
        return self._problem

    async def run(self) -> None:
        """Polls until cancelled. Anything else that ends it is a programmer error: its owner ends the router then."""
        while True:
            try:
                await self.sync_once()
            except StemcacheError as error:
                self._note(str(error))
            await asyncio.sleep(POLL_S)

    async def sync_once(self) -> ControlState:
        """One poll, and the data after it. Raises what the store raises; the directory then keeps what it has."""
        async with self._turn:
            asked_s = self._clock.monotonic_s()
            head = self._directory.state.head
            found = await self._store.read_head_text()
            if not self._directory.is_ready or found != (head.to_text() if head else ""):
                self._take(await self._restored())
            self._directory.confirm(asked_s)
            await self._save()
            self._note(None)
            return self._known

    async def adopt(self, state: ControlState) -> None:
        """Takes what this router's own write left in the store, without another call.

        A state that lacks something known is left to the next poll, which puts it back first.
        """
        async with self._turn:
            if state.generation > self._known.generation and join(state.table, self._known.table) == state.table:
                self._take(state)
                await self._save()

    async def _restored(self) -> ControlState:
        change = await self._store.restore(self._known)
        if change.after is not change.before:
            _log.warning(
                "control_store_repaired",
                loss=_loss(change.before, self._known),
                generation_found=change.before.generation,
                generation_known=self._known.generation,
                generation=change.after.generation,
            )
        if self._directory.is_ready:
            return change.after
        return await self._store.rewrap_from_other(change.after)

    def _take(self, state: ControlState) -> None:
        _log.info("control_data_changed", generation=state.generation, previous_generation=self._known.generation)
        self._known = state
        self._directory.install(state)

    async def _save(self) -> None:
        """A snapshot that cannot be written is tried again at the next poll; serving goes on."""
        if self._saved == self._known:
            return
        state = self._known
        try:
            await asyncio.to_thread(self._snapshot.save, state)
        except OSError as error:
            _log.error("control_snapshot_failed", reason=str(error))
            return
        self._saved = state

    def _note(self, problem: str | None) -> None:
        """Logs a change between well and ill, not every poll."""
        if problem is not None and self._problem is None:
            _log.warning("control_store_away", reason=problem, age_s=self._directory.age_s())
        if problem is None and self._problem is not None:
            _log.info("control_store_back", generation=self._directory.generation)
        self._problem = problem


def _loss(found: ControlState, known: ControlState) -> str:
    if found.head is None:
        return "empty"
    if known.head is not None and found.head.store_id != known.head.store_id:
        return "another store"
    return "rolled back" if found.generation < known.generation else "diverged"
