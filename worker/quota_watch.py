"""Follows the quotas, fences and adapters that routers publish and hands them on.

Reads the small head twice a second and the body when the head names another one. What does not carry the cluster's MAC,
is of another version or is not newer than what is in force (`QuotaHead.is_newer`) changes nothing: a guarantee is not
taken away, nor a purge undone, by a forged or an old document or by a store that is away. Runs on the worker's event
loop, which owns the state. Knows no Redis and no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from cache_store.adapters import Adapter
from cache_store.errors import CorruptDataError, StemcacheError, VersionError
from cache_store.fence import FenceTable
from cache_store.fence_document import FenceReader
from cache_store.quota import QuotaTable
from cache_store.quota_document import QuotaDocument, QuotaHead, read_head, read_published
from cache_store.registry import RENEW_S

APPLY_TIMEOUT_S = 30.0
"""For the engine to come to it, between two steps."""

_log = structlog.get_logger(__name__)


class QuotaSource(Protocol):
    """Where quotas are published. Every method raises UnavailableError."""

    async def read_head(self) -> bytes:
        """Empty where nothing was published."""
        ...

    async def read(self) -> QuotaDocument | None:
        """Head and body of one moment; None where nothing was published."""
        ...


class QuotaWatch:
    """State of one worker."""

    def __init__(
        self,
        source: QuotaSource,
        cluster_key: bytes,
        set_quotas: Callable[[QuotaTable], Awaitable[None]],
        set_fences: Callable[[FenceTable], Awaitable[None]],
        want_adapters: Callable[[tuple[Adapter, ...]], None],
        note_read: Callable[[], None],
        poll_s: float = RENEW_S,
    ) -> None:
        """The setters return when it is in force; they may raise a StemcacheError or TimeoutError. Adapters only begin
        to be loaded.

        `note_read` is called whenever what is published has been read and is what is in force, or nothing was ever.
        """
        self._source = source
        self._cluster_key = cluster_key
        self._set_quotas = set_quotas
        self._set_fences = set_fences
        self._want_adapters = want_adapters
        self._note_read = note_read
        self._poll_s = poll_s
        self._reader = FenceReader()
        self._seen = b""
        self._is_current = False
        """Whether what was seen last is what is in force."""
        self._in_force: QuotaHead | None = None
        self._known: dict[str, int] = {}
        """Latest generation of each store that was ever in force: one that comes again goes on from there."""
        self._problem: str | None = None

    @property
    def in_force(self) -> QuotaHead | None:
        """Which quotas are in force; None before the first."""
        return self._in_force

    @property
    def generation(self) -> int:
        """Of the control data whose quotas are in force; 0 before the first."""
        return self._in_force.generation if self._in_force else 0

    async def run(self) -> None:
        """Follows until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(self._poll_s)

    async def poll(self) -> None:
        """Looks once. What could not be read or handed on is looked at again, what is refused only once."""
        try:
            head = await self._source.read_head()
            if head != self._seen and not self._is_refreshed(head):
                await self._take(await self._source.read())
            if self._is_current or (not head and self._in_force is None):  # or there is nothing to be in force yet
                self._note_read()
        except (StemcacheError, TimeoutError) as error:
            self._note(str(error) or "the engine did not come to it in time")
            return
        self._note(None)

    def _is_refreshed(self, data: bytes) -> bool:
        """Takes a newer head of the body that is in force; whether it was that."""
        try:
            head = read_head(self._cluster_key, data)
        except (CorruptDataError, VersionError):
            return False
        if self._in_force is None or head.body_digest != self._in_force.body_digest or not self._is_news(head):
            return False
        self._note_in_force(head)
        self._seen, self._is_current = data, True
        return True

    async def _take(self, document: QuotaDocument | None) -> None:
        self._is_current = False
        if document is None:
            return  # gone: routers write it again, and what is in force stays
        try:
            head = read_head(self._cluster_key, document.head)
            if self._is_news(head):
                await self._use(head, document.body)
            elif head != self._in_force:
                _log.warning("older_quotas_ignored", generation=head.generation, in_force=self.generation)
            self._is_current = head == self._in_force
        except (CorruptDataError, VersionError) as error:
            _log.error("quotas_refused", reason=str(error), in_force=self.generation)
        self._seen = document.head

    def _is_news(self, head: QuotaHead) -> bool:
        if self._in_force is None:
            return True
        return head.is_newer(self._in_force) and head.generation >= self._known.get(head.store_id, 0)

    async def _use(self, head: QuotaHead, body: bytes) -> None:
        published = await asyncio.to_thread(read_published, head, body, self._reader)  # thousands of tenants take long
        await self._set_fences(published.fences)
        await self._set_quotas(published.quotas)
        self._want_adapters(published.adapters)
        _log.info("quotas_in_force", generation=head.generation, num_tenants=len(published.fences.fences))
        self._note_in_force(head)

    def _note_in_force(self, head: QuotaHead) -> None:
        self._in_force = head
        self._known[head.store_id] = head.generation

    def _note(self, problem: str | None) -> None:
        """Logs a change between well and ill, not every poll."""
        if problem is not None and problem != self._problem:
            _log.warning("quotas_not_read", reason=problem, in_force=self.generation)
        if problem is None and self._problem is not None:
            _log.info("quotas_read_again", in_force=self.generation)
        self._problem = problem
