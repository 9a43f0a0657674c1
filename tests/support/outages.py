"""Redis going away, and time passing, for tests of a router that has neither."""

from __future__ import annotations

import os
import signal

from cache_store.clock import SystemClock
from services.cluster.valkey import EmbeddedValkey
from tests.support.router_host import eventually


class SkewedClock(SystemClock):
    """The machine's clock, put ahead by a test instead of waiting."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


async def end(server: EmbeddedValkey) -> None:
    """Kills it."""
    os.kill(server.pid, signal.SIGKILL)
    await eventually(lambda: not server.is_running())
