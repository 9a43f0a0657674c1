"""What `stemcache up` shows of itself: its parts, and how often it started them. On a thread with a loop of its own.

The supervisor belongs to the main thread, which blocks in system calls now and then; its states are single values, read
as they are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cache_store.telemetry.families import Family, FamilyKind, counters, family
from cache_store.telemetry.http_server import MetricsServer, Page
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.process import process_families
from cache_store.telemetry.text import CONTENT_TYPE, render
from services.cluster.supervision import PartState, Supervisor

_STOP_S = 5.0


class UpMetrics:
    """Of one `stemcache up`."""

    def __init__(self) -> None:
        self.address = ""
        """host:port; empty: nothing is shown."""
        self.supervisor: Supervisor | None = None
        """Set once there is one."""

    async def text(self) -> str:
        """The text of one scrape."""
        supervisor = self.supervisor
        parts = () if supervisor is None else part_families(supervisor.states(), supervisor.starts())
        return render((*process_families(), *parts))


def part_families(states: Mapping[str, PartState], starts: Mapping[str, int]) -> Iterator[Family]:
    """Parts and their starts."""
    values = [
        ((("part", part), ("state", state)), float(now is state)) for part, now in states.items() for state in PartState
    ]
    yield family("stemcache_part_state", FamilyKind.GAUGE, "1 for the state that the part is in.", values)
    yield counters("stemcache_part_starts_total", "Starts of the part; more than one is a restart.", "part", starts)


@contextmanager
def shown(listen: MetricsListen | None) -> Iterator[UpMetrics]:
    """Shows them until the block ends. Raises PreconditionError where the port is taken."""
    metrics = UpMetrics()
    if listen is None:
        yield metrics
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="metrics", daemon=True)
    thread.start()
    try:
        start = MetricsServer.start(listen, {"/metrics": Page(CONTENT_TYPE, metrics.text)})
        server = asyncio.run_coroutine_threadsafe(start, loop).result(_STOP_S)
        metrics.address = server.address
        yield metrics
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(_STOP_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_S)
