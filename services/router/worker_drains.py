"""Lets a worker leave without a cold start: it gives what it has to the others, ends what runs, and is gone.

From its order on it takes no new requests; what is still being computed when its grace is over goes on at another
worker (`services/router/carried.py`). Somebody stays: a worker that leaves is no other one's successor, which this
router knows of those that it ordered to leave, and the worker asks the others itself. Owned by one event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from stemcache.worker.v1 import worker_pb2

from cache_store.drain_token import sign_drain
from cache_store.errors import InvalidRequestError, NotFoundError, PreconditionError
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION, WorkerRecord
from services.router.messages import duration, timestamp
from services.router.registry_view import RegistryView
from services.router.worker_client import WorkerPool

SLACK_S = 150.0
"""Beyond the grace: two rounds of giving away, and the step that runs."""

MAX_GRACE_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Drained:
    """What came of it."""

    moved_blocks: int
    cached_blocks: int
    handed_over_requests: int


class WorkerDrains:
    """Of one router."""

    def __init__(self, view: RegistryView, pool: WorkerPool, cluster_key: bytes) -> None:
        self._view = view
        self._pool = pool
        self._cluster_key = cluster_key
        self._ordered: set[Incarnation] = set()
        """Whose order to leave is being carried out."""

    async def drain(self, worker_id: str, grace_s: float) -> Drained:
        """Returns when the worker leaves.

        Raises NotFoundError, PreconditionError where nobody would be left to serve what it serves or where it is
        leaving already, and WorkerLostError or DeadlineError where it does not answer.
        """
        if not 0 <= grace_s <= MAX_GRACE_S:
            raise InvalidRequestError("grace_duration", f"the grace is 0 to {MAX_GRACE_S:g} s, not {grace_s:g} s")
        records = self._view.records()
        worker = next((record for record in records if record.worker_id == worker_id), None)
        if worker is None:
            raise NotFoundError(f"no worker {worker_id!r} serves now; `stemcache status` lists those that do")
        takers = [each for each in records if _takes_over(each, worker) and each.incarnation not in self._ordered]
        if worker.draining or worker.incarnation in self._ordered:
            raise PreconditionError(f"{worker_id} is leaving already")
        if not takers:
            raise PreconditionError(
                f"only {worker_id} serves {worker.model!r} in its KV format; start another worker before it leaves"
            )
        token = sign_drain(self._cluster_key, worker.incarnation, self._view.token_expiry_s(worker))
        request = worker_pb2.DrainRequest(
            protocol_version=PROTOCOL_VERSION,
            drain_token=token,
            peers=[self._peer(each) for each in takers],
            grace_duration=duration(grace_s),
        )
        self._ordered.add(worker.incarnation)
        try:
            response = await self._pool.ask(worker, lambda stub: stub.Drain(request, timeout=grace_s + SLACK_S))
        finally:
            self._ordered.discard(worker.incarnation)
        self._view.note_leaving(worker.incarnation)
        return Drained(response.moved_blocks, response.cached_blocks, response.handed_over_requests)

    def _peer(self, taker: WorkerRecord) -> worker_pb2.DrainPeer:
        clock_time = timestamp(self._view.clock_unix_s(taker))
        adapters = [report.kv_format for report in taker.adapters if not report.error]
        return worker_pb2.DrainPeer(
            address=taker.address,
            incarnation=taker.incarnation,
            clock_time=clock_time,
            kv_formats=[taker.kv_format, *adapters],
        )


def _takes_over(record: WorkerRecord, worker: WorkerRecord) -> bool:
    is_other = record.incarnation != worker.incarnation
    return is_other and record.model == worker.model and record.kv_format == worker.kv_format and not record.draining
