"""A worker's actor whose engine can be broken from outside."""

from __future__ import annotations

import asyncio

from worker.actor import WorkerActor
from worker.engine import Engine


class BreakableActor(WorkerActor):
    """For tests of what happens then."""

    def break_engine(self) -> None:
        """Ends the engine's thread by an exception."""
        asyncio.run_coroutine_threadsafe(self._host.thread.call(_break, 10), self._loop)


def _break(_: Engine) -> None:
    raise SystemExit("broken by a test")
