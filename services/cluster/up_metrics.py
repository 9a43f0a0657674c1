"""What a keeper of parts shows of itself: its parts, and how often it started them. On a thread with a loop of its own.

`stemcache up` and `python -m services.cluster` do; the latter also tells whether the head of its Ray answers.

The supervisor belongs to the main thread, which blocks in system calls now and then; its states are single values, read
as they are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cache_store.telemetry.families import Family, FamilyKind, counters, family, gauge
from cache_store.telemetry.http_server import MetricsServer, Page
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.process import process_families
from cache_store.telemetry.text import CONTENT_TYPE, render
from services.cluster.supervision import PartState, Supervisor

_STOP_S = 5.0
_KNOCK_S = 2.0
_HEAD = "1 while the head of Ray takes connections: only then are workers placed."


class UpMetrics:
    """Of one process."""

    def __init__(self, ray_address: str = "") -> None:
        """`ray_address`: of the head of a Ray that others run; empty: there is none."""
        self._ray_address = ray_address
        self.address = ""
        """host:port; empty: nothing is shown."""
        self.supervisor: Supervisor | None = None
        """Set once there is one."""

    async def text(self) -> str:
        """The text of one scrape."""
        supervisor = self.supervisor
        parts = () if supervisor is None else part_families(supervisor.states(), supervisor.starts())
        head = [await _head_family(self._ray_address)] if self._ray_address else []
        return render((*process_families(), *parts, *head))


def part_families(states: Mapping[str, PartState], starts: Mapping[str, int]) -> Iterator[Family]:
    """Parts and their starts."""
    values = [
        ((("part", part), ("state", state)), float(now is state)) for part, now in states.items() for state in PartState
    ]
    yield family("stemcache_part_state", FamilyKind.GAUGE, "1 for the state that the part is in.", values)
    yield counters("stemcache_part_starts_total", "Starts of the part; more than one is a restart.", "part", starts)


async def _head_family(address: str) -> Family:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_KNOCK_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except OSError:  # TimeoutError is one
        return gauge("stemcache_ray_head_answers", _HEAD, 0.0)
    return gauge("stemcache_ray_head_answers", _HEAD, 1.0)


@contextmanager
def shown(listen: MetricsListen | None, ray_address: str = "") -> Iterator[UpMetrics]:
    """Shows them until the block ends. Raises PreconditionError where the port is taken."""
    metrics = UpMetrics(ray_address)
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
