"""From receipts of purges to the operator's messages. Holds no state."""

from __future__ import annotations

from stemcache.admin.v1 import admin_pb2 as pb

from services.router.messages import blocks_by_tier, timestamp
from services.router.purge_notices import WorkerAnswer
from services.router.purges import PurgeReceipt


def receipt_message(receipt: PurgeReceipt) -> pb.PurgeReceipt:
    """A receipt, worker by worker."""
    return pb.PurgeReceipt(
        purge_time=timestamp(receipt.purge_unix_s),
        control_generation=receipt.generation,
        workers=[_worker_message(answer) for answer in receipt.workers],
        complete_time=timestamp(receipt.complete_unix_s),
    )


def _worker_message(answer: WorkerAnswer) -> pb.WorkerPurge:
    given = answer.acknowledgement
    return pb.WorkerPurge(
        worker_id=answer.worker_id,
        incarnation=answer.incarnation,
        acknowledged=given is not None,
        purged_blocks=blocks_by_tier(given.purged) if given else None,
        held_blocks=given.held_blocks if given else 0,
        error=answer.error,
        counts_pending=given is not None and not given.is_counted,
    )
