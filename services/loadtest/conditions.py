"""conditions.json: under what a run was made. Two runs can be compared where these agree in what matters.

Values. Prompts, keys and addresses are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CONDITIONS_VERSION = 1
Setting = str | int | float | bool | None


class CacheState(StrEnum):
    """What of the workload was cached when the measured part began."""

    FRESH = "fresh"
    """Nothing: a partition that no run has used before."""
    PRIMED = "primed"
    """What the workload primes: its shared prefixes, in a partition of the run's own."""
    PURGED = "purged"
    """Nothing: a partition that was named, purged before."""
    KEPT = "kept"
    """Whatever was there; asked for by name."""
    UNKNOWN = "unknown"
    """A server that offers neither partitions nor purges."""


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """How busy the client's machine was."""

    unix_s: float
    load_1min: float
    cpu_share: float
    """Part of all cores in use, over a fifth of a second."""
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the load came from; with `stemcache up` the system's too."""

    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    kernel: str
    python: str


@dataclass(frozen=True, slots=True)
class ModelConditions:
    """The model, as the server tells."""

    name: str
    digest: str
    """Of its weights, attention, data types and block size, as workers tell; several with commas between, where
    workers differ. Empty where nobody tells."""
    block_size: int
    """Tokens per block; 0 where it is not known."""
    max_model_len: int
    kv_bytes_per_token: int
    vocab_size: int
    tokenizer: str
    """Who counted: `server`, or the folder that was given."""


@dataclass(frozen=True, slots=True)
class WorkerConditions:
    """One worker's limits."""

    worker: str
    model: str
    total_blocks: int
    block_size: int
    kv_pool_bytes: int
    max_num_sequences: int
    """Its batch limit."""
    host_blocks: int
    """Room of the tier; 0 without one."""
    disk_blocks: int


@dataclass(frozen=True, slots=True)
class StatedConditions:
    """Of a server that does not tell them itself: what whoever ran the load test has stated."""

    max_num_sequences: int
    """Its batch limit; 0: not stated."""
    hardware: str
    """What it runs on; empty: not stated, or the client's machine."""
    version: str
    """Empty: not stated."""


@dataclass(frozen=True, slots=True)
class TenantConditions:
    """A tenant's part of the load."""

    tenant: str
    weight: float
    workload: str
    parameters: Mapping[str, Setting]
    """Of the workload, as numbers and text."""
    request_rate: float | None
    """Of an open loop; None where it is a closed one or the trace's own times."""
    max_concurrency: int | None
    quota: Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of it."""

    conditions_version: int
    versions: Mapping[str, str]
    """`stemcache` (the client's), `server`, python packages that matter."""
    commit: str
    """Of the client's source tree; empty outside one."""
    machine: Machine
    model: ModelConditions
    workers: tuple[WorkerConditions, ...]
    """As they were before the run; empty where the operator's API was not asked."""
    backend: str
    arrival: str
    """`poisson`, `gamma`, `constant`, `trace`, `closed`, or `immediate`."""
    request_rate: float | None
    burstiness: float | None
    max_concurrency: int | None
    tenants: tuple[TenantConditions, ...]
    seed: int
    cache_state: CacheState
    partition: str
    settings: Mapping[str, Setting]
    """The flags of the command; secrets are left out."""
    start_unix_s: float
    """When the measured part began: its second 0."""
    load_before: MachineLoad
    load_after: MachineLoad
    is_remote: bool = False
    """Whether the server may run on another machine than the client's: what `machine` says is not the server's."""
    stated: StatedConditions | None = None
    """None: nothing was."""
