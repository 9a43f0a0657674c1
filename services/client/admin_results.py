"""What the operator's API answers, as values."""

from __future__ import annotations

from dataclasses import dataclass

from services.client.cache_results import BlocksByTier


@dataclass(frozen=True, slots=True)
class TierShare:
    """What a tenant has of one tier of every worker; parts of it, 0 to 1."""

    tier: str
    min: float
    max: float
    min_in_force: float
    """Less than `min` only where stores were joined that had promised the same room."""


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """What a tenant is guaranteed and may have of the caches."""

    tiers: tuple[TierShare, ...]
    weight: float
    max_pinned: float
    audit_share: float
    """Part of its cache hits that is checked in idle time."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Over the whole cluster; None: no limit of its own."""

    requests_in_flight: int | None
    tokens_per_s: int | None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant."""

    name: str
    uuid: str
    create_unix_s: float
    epoch_unix_s: float
    """When its epoch was last renewed."""
    num_live_keys: int
    quota: TenantQuota
    limits: TenantLimits


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret."""

    key_id: str
    create_unix_s: float
    revoked: bool


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key that was just made."""

    key: ApiKey
    secret: str
    """The whole key as a caller sends it; told once."""


@dataclass(frozen=True, slots=True)
class WorkerPurge:
    """What a purge did on one worker."""

    worker_id: str
    incarnation: str
    acknowledged: bool
    """Whether it has forgotten what was purged."""
    purged_blocks: BlocksByTier
    held_blocks: int
    """Of them, those that running requests still use."""
    error: str
    """Why it did not acknowledge."""
    counts_pending: bool
    """Whether it acknowledged in the middle of a long step: the counts are not known."""


@dataclass(frozen=True, slots=True)
class PurgeReceipt:
    """Proof of a purge."""

    purge_unix_s: float
    """From then on requests to the router that was called reach nothing of it."""
    control_generation: int
    workers: tuple[WorkerPurge, ...]
    complete_unix_s: float
    """When it is complete everywhere, also where nobody could be reached."""


@dataclass(frozen=True, slots=True)
class Rotated:
    """A tenant in a fresh epoch."""

    tenant: Tenant
    receipt: PurgeReceipt


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """What an import added or replaced."""

    num_tenants: int
    num_keys: int


@dataclass(frozen=True, slots=True)
class AuditStatus:
    """Checks of cached keys and values against computed ones; counts since a worker's start."""

    checked_blocks: int
    mismatches: int
    """Alarms: blocks that differed, and were put out of use with all that followed them."""
    skipped_hits: int
    """Chosen for a check that could not be made, or not to its end."""


@dataclass(frozen=True, slots=True)
class PressureStatus:
    """What a worker did when blocks ran out, in the order in which it resorts to it; counts since its start."""

    lent_back_blocks: int
    """Taken back from tenants that had borrowed them, for one below its guarantee."""
    evicted_blocks: int
    stopped_admissions: int
    """Steps in which a request had to wait because there were no blocks for it."""
    preemptions: int
    yielded_pins: int
    refused_requests: int
    """Requests that could never fit."""
    demoted_blocks: int
    """Of the evicted ones, those that went to a lower tier."""


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One tenant's blocks on one worker."""

    tenant: str
    """Its name; the uuid of one that does not live any more."""
    guaranteed_blocks: int
    max_blocks: int
    used_blocks: int
    """Held or cached."""
    held_blocks: int
    pinned_blocks: int
    lent_blocks: int
    """Of its guarantee, used by others now."""
    waiting_requests: int
    evicted_blocks: int
    """Since the worker started."""
    host_blocks: int
    """In the host's memory."""
    disk_blocks: int


@dataclass(frozen=True, slots=True)
class TierStatus:
    """A tier below the device; counts since the worker's start."""

    tier: str
    used_blocks: int
    total_blocks: int
    stored_blocks: int
    """Written to it."""
    loaded_blocks: int
    """Read back to the device."""
    evicted_blocks: int
    dropped_blocks: int
    """That were not worth being written to it, or had no room."""
    failed_blocks: int
    """Writes and reads that failed: torn or foreign bytes, a full disk."""
    load_block_s: float
    """Measured seconds to read one block back; 0 before the first measurement."""


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """Slots of a group of sliding layers that has fewer of them than there are blocks."""

    window: int
    """Tokens that its layers read."""
    used_slots: int
    """Held by running requests, or cached."""
    total_slots: int
    cached_slots: int
    """Of those used: kept for later hits or pins."""
    max_cached_slots: int


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Blocks given to other workers and taken from them; counts since a worker's start."""

    fetched_blocks: int = 0
    """That came from other workers and were taken in."""
    fetched_bytes: int = 0
    served_blocks: int = 0
    """That were sent to other workers."""
    served_bytes: int = 0
    fetches: int = 0
    failed_fetches: int = 0
    """Of them, those that ended before their time or brought nothing."""
    refused_blocks: int = 0
    """That were not what was asked for, and were not used."""
    declined_fetches: int = 0
    """Where computing was the faster."""


@dataclass(frozen=True, slots=True)
class DrainedWorker:
    """A worker that has left."""

    moved_blocks: int
    """That other workers have taken."""
    cached_blocks: int
    handed_over_requests: int
    """That went on at another worker."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as a router sees it."""

    worker_id: str
    incarnation: str
    address: str
    model: str
    running_requests: int
    waiting_requests: int
    used_blocks: int
    total_blocks: int
    block_size: int
    kv_bytes_per_token: int
    max_model_len: int
    max_num_sequences: int
    prefill_tokens_per_s: float
    """0 before the first measurement."""
    quota_generation: int
    """Of the control data whose quotas are in force there; 0: none yet."""
    pressure: PressureStatus
    tenants: tuple[TenantUse, ...]
    """Those that use most blocks, at most 64."""
    tiers: tuple[TierStatus, ...]
    """Below the device."""
    audit: AuditStatus
    kv_bytes_per_sequence: int = 0
    """That a running request takes beside its tokens' part: windows of sliding layers, and the block begun."""
    kv_pool_bytes: int = 0
    """Of all pools of the device."""
    windows: tuple[WindowStatus, ...] = ()
    """Of groups of sliding layers that have fewer slots than there are blocks."""
    peers: PeerStatus = PeerStatus()
    draining: bool = False
    """It takes no requests and is about to leave."""
    kv_format: str = ""
    """Digest of weights, attention, data types and block size; empty where the router is older."""
    metrics_address: str = ""
    """host:port where Prometheus reads its metrics; empty: nowhere."""


@dataclass(frozen=True, slots=True)
class IndexCopyStatus:
    """A router's copy of parts of the index."""

    domains: int = 0
    digests: int = 0
    """Over all domains and workers."""
    followed_workers: int = 0
    """Whose changes are followed to the end."""
    known_workers: int = 0
    resyncs: int = 0
    """Times that a worker was forgotten and read anew."""
    copy_lookups: int = 0
    """That the copy answered alone."""
    script_lookups: int = 0
    """For which the script in Redis was asked."""
    failed_lookups: int = 0
    """For which it did not answer."""


@dataclass(frozen=True, slots=True)
class TrafficStatus:
    """What one tenant's requests asked of the cache and found in it; counts since the router's start."""

    tenant: str
    requests: int
    """Whose first token has come."""
    prompt_tokens: int
    """Of these requests."""
    device_tokens: int
    """Reused, and on the worker's device before."""
    host_tokens: int
    disk_tokens: int
    peer_tokens: int

    @property
    def cached_tokens(self) -> int:
        """Reused, wherever they lay."""
        return self.device_tokens + self.host_tokens + self.disk_tokens + self.peer_tokens


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A router and what it sees."""

    version: str
    degraded: bool
    control_age_s: float
    control_generation: int
    workers: tuple[WorkerStatus, ...]
    refused_workers: tuple[str, ...]
    """Workers that were refused, and why."""
    running_requests: int
    degraded_reasons: tuple[str, ...] = ()
    """What is lacking: `control_data`, `registry`, `index`, `limits`."""
    planned_requests: int = 0
    """Since the router's start."""
    degraded_requests: int = 0
    """Of them those whose route was degraded."""
    index_copy: IndexCopyStatus = IndexCopyStatus()
    traffic: tuple[TrafficStatus, ...] = ()
    """By name of the tenant."""
    console_url: str = ""
    """Where the router's console is opened with a browser; empty: it has none."""
    metrics_address: str = ""
    """As in WorkerStatus, of the router."""


@dataclass(frozen=True, slots=True)
class RouteTerm:
    """What one candidate would have cost."""

    worker_id: str
    matched_tokens: int
    queue_s: float
    prefill_s: float
    cost: float
    """The sum of both and `recompute_s`."""
    recompute_s: float = 0.0
    """What computing again costs others."""
    counted_tokens: int = 0
    """Of `matched_tokens`, those that the cost counts: none where they are few."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request went where it went, and reused what it did."""

    worker_id: str
    """Empty before it was sent to one."""
    route: str
    """Why there."""
    miss_reason: str
    """Why not more was reused: `none`, `differs`, `never_stored`, `evicted`, ...; `unspecified` before it is known."""
    reuse: str
    first_missing_token: int
    """Position of the first prompt token that had to be computed."""
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, from arrival to end."""

    tenant: str
    request_id: str
    model: str
    receive_unix_s: float
    status: str
    """Empty while it runs."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    terms: tuple[RouteTerm, ...]
    """Candidates, best first by the rule."""
    route_rule: str
    """What decided: `cost`, `tie`, `replication`, `affinity` for a strict tenant, empty before it was routed."""
    attempts: int
    degraded: bool
    route_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int
    preempted_s: float
    recompute_s: float
    swap_s: float
    recomputed_tokens: int
