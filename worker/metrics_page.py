"""Makes a worker's metrics at each scrape. On the event loop; asks the engine between two of its steps.

An engine that is in a long step, or hangs, is shown as it was at the last scrape.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from cache_store.errors import WorkerLostError
from cache_store.registry import WorkerRecord
from cache_store.telemetry.http_server import MetricsServer, Page
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.text import CONTENT_TYPE, render
from worker.engine import Engine
from worker.engine_books import Vitals
from worker.engine_thread import EngineThread
from worker.meter import Meter
from worker.metrics import WorkerNow, host_blocks, pool_bytes_in_memory, worker_families
from worker.publisher import IndexState

PATIENCE_S = 1.0
"""To wait for the end of a step."""


class Events(Protocol):
    """Whoever writes to the index."""

    @property
    def index_state(self) -> IndexState: ...

    @property
    def num_waiting(self) -> int: ...


class MetricsPage:
    """Of one worker."""

    def __init__(
        self,
        thread: EngineThread[Engine],
        meter: Meter,
        publisher: Events,
        record: Callable[[], WorkerRecord],
        device: str,
    ) -> None:
        self._thread = thread
        self._meter = meter
        self._publisher = publisher
        self._record = record
        self._device = device
        self._vitals = Vitals(0, 0, record().num_blocks, {}, 0, 0)

    async def show(self, listen: MetricsListen | None) -> MetricsServer | None:
        """Opens the port for it; None: it is not to be shown. Raises PreconditionError where the port is taken."""
        if listen is None:
            return None
        return await MetricsServer.start(listen, {"/metrics": Page(CONTENT_TYPE, self.text)})

    async def text(self) -> str:
        """The text of one scrape."""
        with suppress(TimeoutError, WorkerLostError):  # else the last ones stand
            self._vitals = await self._thread.call(Engine.vitals, PATIENCE_S)
        record = self._record()
        now = WorkerNow(
            record=record,
            vitals=self._vitals,
            meter=self._meter,
            host_pool_bytes=pool_bytes_in_memory(record, self._device, host_blocks(record)),
            waiting_events=self._publisher.num_waiting,
            is_index_current=self._publisher.index_state is IndexState.CURRENT,
            stalled_s=self._thread.stalled_s(),
        )
        return render(worker_families(now))
