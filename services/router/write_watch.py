"""Ends a stream whose reader takes nothing any more. One timer watches a call, not one each of its messages.

Owned by the task that writes. Knows no messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType

from cache_store.errors import DeadlineError


class WriteWatch:
    """Of one call, for as long as the block runs."""

    def __init__(self, write_s: float) -> None:
        """`write_s`: how long a message may stay unread."""
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._since_s: float | None = None
        """When the message was given that is being written; None while none is."""

    async def __aenter__(self) -> WriteWatch:
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise DeadlineError(f"the stream was not read for {self._write_s:g} s") from None

    async def written(self, writing: Awaitable[None]) -> None:
        """Waits until the message is written. The block ends with DeadlineError where that takes too long."""
        self._since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._write_s, self._look)
        await writing
        self._since_s = None

    def _look(self) -> None:
        """Ends the block, or looks again when the message of now may have waited long enough."""
        self._timer = None
        if self._since_s is None:
            return
        now_s = self._loop.time()
        left_s = self._since_s + self._write_s - now_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._limit.reschedule(now_s)
