"""What the operator's API says of adapters, as values."""

from __future__ import annotations

from dataclasses import dataclass

from stemcache.admin.v1 import admin_pb2 as pb

_STATES = {pb.WorkerAdapter.STATE_SERVED: "served", pb.WorkerAdapter.STATE_FAILED: "failed"}


@dataclass(frozen=True, slots=True)
class WorkerAdapter:
    """An adapter on one worker."""

    worker_id: str
    state: str
    """`served`, `failed` or `pending`."""
    error: str
    """Why it is not served there."""


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter that is loaded."""

    name: str
    base_model: str
    folder: str
    digest: str
    """Of its content, in hex."""
    tenants: tuple[str, ...]
    """Who may call it; empty: everybody."""
    load_unix_s: float
    workers: tuple[WorkerAdapter, ...]

    @property
    def is_served_everywhere(self) -> bool:
        """Whether every worker of its model has it."""
        return all(each.state == "served" for each in self.workers)


def adapter_of(message: pb.Adapter) -> LoadedAdapter:
    """The value of an adapter."""
    return LoadedAdapter(
        name=message.name,
        base_model=message.base_model,
        folder=message.folder,
        digest=message.digest,
        tenants=tuple(message.tenants),
        load_unix_s=message.load_time.ToNanoseconds() / 1e9,
        workers=tuple(
            WorkerAdapter(each.worker_id, _STATES.get(each.state, "pending"), each.error) for each in message.workers
        ),
    )
