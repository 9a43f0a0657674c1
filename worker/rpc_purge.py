"""Fences at a worker's edge: what they let requests reuse, and what the engine drops by them.

Unreachable and dropped are two moments. From the one in which a fence is taken in here, no request that arrives finds
or stores anything of what it purges, and none that arrived before and has not been started either: the engine hears of
the fence behind them and before its next step. What has been started goes on with what it holds. The engine drops what
was purged between two steps, so that counting it waits for a step that may take a second; an answer does not wait that
long. The bytes go with the steps that follow.

A worker that was stopped, or cut off from what is published, may have missed a purge: after MAX_READ_AGE_S it serves
without reuse, until it has read again. Runs on the worker's event loop.
"""

from __future__ import annotations

from typing import Protocol

import structlog
from stemcache.v1 import cache_pb2
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import Clock
from cache_store.errors import UnavailableError
from cache_store.fence import FenceTable
from cache_store.fence_document import verify_notice
from cache_store.index import Incarnation
from cache_store.request_token import RequestClaims
from cache_store.scrubs import Dropped
from worker.engine_thread import EngineThread
from worker.fences import FenceBook, Fences
from worker.revoked_keys import RevokedKeys
from worker.threaded_engine import ThreadedEngine

ACKNOWLEDGE_WITHIN_S = 0.5
"""An answer waits that long for the counts."""

MAX_READ_AGE_S = 8.0
"""What was read longer ago is not relied on. Shorter than the bound of a router's control data, after which a purge is
said to be complete, by more than it takes to publish one."""

REVOKED_AFTER_S = 5.0
"""Routers that still do not know of a key that was revoked so long ago are not believed: half of the bound of their
control data, and many times what they take to hear of it."""

APPLY_TIMEOUT_S = 30.0
"""For the engine to come to published fences, between two steps."""

_log = structlog.get_logger(__name__)


class PurgingEngine(ThreadedEngine, Protocol):
    """An engine that drops what is purged."""

    def purge(self, fences: Fences) -> Dropped:
        """Drops the domains that these fences purge; what it had of them."""
        ...


class PurgeCalls:
    """Fences of one worker."""

    def __init__(
        self, thread: EngineThread[PurgingEngine], incarnation: Incarnation, cluster_key: bytes, clock: Clock
    ) -> None:
        self._thread = thread
        self._incarnation = incarnation
        self._cluster_key = cluster_key
        self._clock = clock
        self._book = FenceBook()
        self._revoked = RevokedKeys()
        self._read_s = clock.monotonic_s()

    def admits(self, claims: RequestClaims) -> bool:
        """Whether something may be reused or stored for the request, as of now."""
        return not self._is_behind and self._book.admits(claims)

    @property
    def generation(self) -> int:
        """Of the control data that the published fences are of."""
        return self._book.generation

    def require_current(self, claims: RequestClaims) -> None:
        """Raises UnavailableError where the request's router has long missed that a key of its tenant was revoked: it
        cannot know that the caller's key is live."""
        settled = self._revoked.settled(claims.domain.tenant, self._clock.monotonic_s() - REVOKED_AFTER_S)
        if claims.num_revoked_keys < settled:
            raise UnavailableError(
                "the router's control data are too old to know which keys of the tenant are live; ask another router",
                1.0,
            )

    def note_read(self) -> None:
        """What is published now has been read, and is in force."""
        self._read_s = self._clock.monotonic_s()

    async def take(self, table: FenceTable) -> None:
        """Takes published fences in; returns when the engine has dropped what they purge. Raises TimeoutError."""
        self._revoked.take(table.revoked_keys, self._clock.monotonic_s())
        fences = self._book.take(table)
        if fences:
            dropped = await self._thread.call(lambda engine: engine.purge(fences), APPLY_TIMEOUT_S)
            _log_dropped("fences", dropped)

    @property
    def _is_behind(self) -> bool:
        """Whether a purge may have been missed."""
        return self._clock.monotonic_s() - self._read_s > MAX_READ_AGE_S

    async def purge(self, message: worker_pb2.PurgeRequest) -> worker_pb2.PurgeResponse:
        """Comes up to the fence of a notice. Raises UnauthenticatedError, VersionError, CorruptDataError."""
        fences = self._book.take_notice(verify_notice(self._cluster_key, message.fence))
        try:
            dropped = await self._thread.call(lambda engine: engine.purge(fences), ACKNOWLEDGE_WITHIN_S)
        except TimeoutError:
            _log.info("purge_behind_step")
            return worker_pb2.PurgeResponse(incarnation=self._incarnation, counts_pending=True)
        _log_dropped("notice", dropped)
        return worker_pb2.PurgeResponse(
            incarnation=self._incarnation,
            purged_blocks=cache_pb2.BlocksByTier(
                device_blocks=dropped.device_blocks, host_blocks=dropped.host_blocks, disk_blocks=dropped.disk_blocks
            ),
            held_blocks=dropped.held_blocks,
        )


def _log_dropped(why: str, dropped: Dropped) -> None:
    _log.info(
        "purged",
        why=why,
        device_blocks=dropped.device_blocks,
        host_blocks=dropped.host_blocks,
        disk_blocks=dropped.disk_blocks,
        held_blocks=dropped.held_blocks,
    )
