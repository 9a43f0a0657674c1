"""What an operator should see at once: what is not as it should be, in words. Pure."""

from __future__ import annotations

from services.client.admin_results import ClusterStatus, WorkerStatus

_DEGRADED = {
    "control_data": "control data too old: nothing is reused",
    "registry": "registry out of reach: workers as last known",
    "renewals": "no worker renews its lease: those that were known and answer go on",
    "index": "index out of reach: routed by what was known",
    "limits": "other routers' limits unknown: each keeps to its share",
}


def cluster_marks(status: ClusterStatus) -> tuple[str, ...]:
    """Of the whole system."""
    marks = [f"degraded: {_DEGRADED.get(each, each)}" for each in status.degraded_reasons]
    marks += [f"refused: {each}" for each in status.refused_workers]
    if not status.workers:
        marks.append("no worker is ready")
    return tuple(marks)


def worker_marks(worker: WorkerStatus, status: ClusterStatus) -> tuple[str, ...]:
    """Of one worker."""
    marks = []
    if worker.audit.mismatches:
        marks.append(f"ALARM: {worker.audit.mismatches} cached blocks were not what they should be")
    if worker.draining:
        marks.append("draining: about to leave")
    if worker.quota_generation < status.control_generation:
        marks.append(f"quotas of generation {worker.quota_generation} of {status.control_generation}")
    if failed := sum(each.failed_blocks for each in worker.tiers):
        marks.append(f"{failed} writes or reads of lower tiers failed")
    return tuple(marks)
