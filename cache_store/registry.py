"""Which workers live: each renews a lease under its incarnation; readers see leases that have not run out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

from cache_store.adapters import AdapterReport
from cache_store.domain import FormatDigest
from cache_store.index import Incarnation
from cache_store.usage import (
    NO_AUDITS,
    NO_PEERS,
    NO_PRESSURE,
    AuditCounts,
    PeerCounts,
    Pressure,
    TenantUse,
    TierLoad,
    WindowLoad,
)

WorkerId = NewType("WorkerId", str)
"""Stable name of a worker, kept over restarts."""

PROTOCOL_VERSION = 5
"""Version of `stemcache.worker.v1` and of the records below."""

LEAVING_REASON = "WORKER_LEAVING"
"""Reason of the google.rpc.ErrorInfo with which a worker that leaves refuses what is new."""

MAX_TENANTS_TOLD = 64
"""Tenants whose use of its blocks a worker tells with each renewal."""

MAX_WINDOWS_TOLD = 64
"""Groups of sliding layers of which it tells the slots."""

LEASE_S = 3.0
"""A worker that has not renewed for that long is dead to every reader."""

RENEW_S = 0.5
"""How often a worker renews and readers read."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a worker has to do, at its last renewal."""

    running_requests: int
    waiting_requests: int
    queued_prefill_tokens: int
    """Prompt tokens admitted or waiting, still to be computed."""
    prefill_tokens_per_s: float
    """Measured; 0 before the first measurement."""
    used_blocks: int
    """Held by requests or cached."""
    pressure: Pressure = NO_PRESSURE
    tenants: tuple[TenantUse, ...] = ()
    """Those that use most blocks first; a record tells at most MAX_TENANTS_TOLD."""
    tiers: tuple[TierLoad, ...] = ()
    """Below the device."""
    audit: AuditCounts = NO_AUDITS
    windows: tuple[WindowLoad, ...] = ()
    """Of its window groups."""
    peers: PeerCounts = NO_PEERS
    """Given to other workers and taken from them."""
    recent_prefill_tokens: int = 0
    """Computed lately, of which old ones count less: what the cache took in. All routers break ties by it."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker tells about itself with each renewal."""

    protocol_version: int
    worker_id: WorkerId
    incarnation: Incarnation
    address: str
    """host:port of its gRPC edge."""
    model: str
    kv_format: FormatDigest
    tokenizer_digest: str
    """Hex digest of the model folder's tokenizer files; empty for a runner without text."""
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int
    """That each token takes of the pool, however long its request is."""
    max_model_len: int
    max_num_sequences: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    draining: bool
    load: WorkerLoad
    quota_generation: int = 0
    """Generation of the control data whose quotas are in force there; 0: none yet, only defaults."""
    kv_bytes_per_sequence: int = 0
    """That a running request takes beside that: the windows of layers that keep no more, and the block begun."""
    kv_pool_bytes: int = 0
    """Of all pools of the device."""
    adapters: tuple[AdapterReport, ...] = ()
    """What became of those that it is to serve, at most MAX_ADAPTERS."""
    clock_unix_s: float = 0.0
    """Time of day by the clock that it judges request tokens by, at the renewal; 0 in a record of another version."""
    metrics_address: str = ""
    """host:port where Prometheus reads its metrics; empty: nowhere."""


class Renewal(StrEnum):
    """What a renewal found."""

    NEW = "new"
    """No lease of this incarnation: the first renewal, a lease that ran out, or a store that lost its data."""
    KEPT = "kept"
    """The lease of the renewal before."""


class RegistryUnavailableError(Exception):
    """The registry cannot be reached or does not answer."""


class SupersededError(Exception):
    """A newer incarnation of the same worker has renewed: this one is a leftover and has to end."""


class RegistryReader(Protocol):
    """The router's side."""

    async def workers(self) -> list[WorkerRecord]:
        """Records under a live lease, by worker id; of each worker only the newest incarnation.

        A record of another protocol version comes with only `protocol_version`, `worker_id` and `incarnation`
        meaningful, so that it can be refused by name; one that cannot be read has protocol version 0.
        Raises RegistryUnavailableError.
        """
        ...


class RegistryWriter(Protocol):
    """The worker's side."""

    async def renew(self, record: WorkerRecord) -> Renewal:
        """Renews the lease for LEASE_S. After NEW the worker's index must be replaced.

        The newest incarnation of a worker is the one whose first renewal came last. From then on renewals of older ones
        are refused with SupersededError, also when the newest has ended: a process that was stopped and comes back does
        not take its successor's place. Raises RegistryUnavailableError.
        """
        ...

    async def leave(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        """Ends the lease at once, if it is still this incarnation's. Raises RegistryUnavailableError."""
        ...
