"""Tells workers what was purged, all at once, and gathers what they say.

A notice only makes faster what the published fences do anyway: a worker that does not answer comes up to the fence when
it reads these, and until then every token of a purged domain's successor names another root. Owned by one event loop;
holds no state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stemcache.worker.v1 import worker_pb2

from cache_store.errors import StemcacheError
from cache_store.fence import FenceNotice
from cache_store.fence_document import sign_notice
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION, WorkerId, WorkerRecord
from services.router.block_counts import BlockCounts
from services.router.registry_view import RegistryView
from services.router.worker_client import WorkerPool

WAIT_S = 0.7
"""For a worker's acknowledgement: the rest of a second is left for the control data."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Nothing of it can be reached at the worker any more; what it had of it."""

    purged: BlockCounts
    held_blocks: int
    """Of them, blocks that running requests still use."""
    is_counted: bool
    """False in the middle of a long step: the counts are 0, and it is dropped when the step ends."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What came of a notice at one worker."""

    worker_id: WorkerId
    incarnation: Incarnation
    acknowledgement: Acknowledgement | None
    error: str
    """Why there is none; empty where there is one."""


class PurgeNotices:
    """Sends them to every worker that the router knows."""

    def __init__(self, view: RegistryView, pool: WorkerPool, cluster_key: bytes) -> None:
        self._view = view
        self._pool = pool
        self._cluster_key = cluster_key

    async def tell(self, notice: FenceNotice) -> tuple[WorkerAnswer, ...]:
        """By worker id; of workers that have left the registry lately too."""
        request = worker_pb2.PurgeRequest(
            protocol_version=PROTOCOL_VERSION, fence=sign_notice(self._cluster_key, notice)
        )
        workers = sorted((view.record for view in self._view.snapshot()), key=lambda record: record.worker_id)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._tell(worker, request)) for worker in workers]
        return tuple(task.result() for task in tasks)

    async def _tell(self, worker: WorkerRecord, request: worker_pb2.PurgeRequest) -> WorkerAnswer:
        try:
            response = await self._pool.ask(worker, lambda stub: stub.Purge(request, timeout=WAIT_S))
        except StemcacheError as error:
            return WorkerAnswer(worker.worker_id, worker.incarnation, None, str(error))
        if response.incarnation != worker.incarnation:
            return WorkerAnswer(worker.worker_id, worker.incarnation, None, "another incarnation answered")
        blocks = response.purged_blocks
        purged = BlockCounts(blocks.device_blocks, blocks.host_blocks, blocks.disk_blocks)
        given = Acknowledgement(purged, response.held_blocks, is_counted=not response.counts_pending)
        return WorkerAnswer(worker.worker_id, worker.incarnation, given, error="")
