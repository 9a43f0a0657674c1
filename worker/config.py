"""Everything that one worker is told at its start. Plain values, so that it travels to another process as it is.

Made by whoever starts workers; reads no environment. Every value is checked here, and a bad one is refused by its name.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

from cache_store.audit_mode import AuditMode
from cache_store.cluster_mac import KEY_BYTES
from cache_store.errors import InvalidRequestError
from cache_store.policies.choice import PolicyKind
from cache_store.registry import WorkerId
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.spans import TracingSettings
from cache_store.tls_files import TlsFiles

_WORKER_ID = re.compile(r"[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


class RunnerKind(StrEnum):
    """What computes."""

    PAGED = "paged"
    """A Hugging Face model with paged keys and values."""
    DIGEST = "digest"
    """The token-digest runner: no model, exact bookkeeping, any speed. For tests of schedulers and clusters."""


class KvChoice(StrEnum):
    """How keys and values are stored."""

    AUTO = "auto"
    """As the model computes them."""
    INT8 = "int8"
    """8 bits, and a scale for each token and head."""
    FLOAT8 = "float8_e4m3"
    """The same, with 4 bits of exponent."""


class Numerics(StrEnum):
    """What may change the last bits of logits."""

    FAST = "fast"
    """How a prompt was cut, what of it was cached, and what ran beside it."""
    DETERMINISTIC = "deterministic"
    """Nothing: additions have one order. Models for which this cannot be had are refused at load."""


class AttentionKind(StrEnum):
    """What attends to cached keys and values."""

    AUTO = "auto"
    """The fastest that the model and its device allow."""
    NATIVE = "native"
    """The compiled kernel for CPUs."""
    TRITON = "triton"
    """The kernels for NVIDIA GPUs."""
    FLASHINFER = "flashinfer"
    """The package of that name, for 16-bit models on GPUs."""
    VARLEN = "varlen"
    """torch's FlashAttention, for 16-bit models on GPUs."""
    GATHER = "gather"
    """Plain torch, on any device."""


@dataclass(frozen=True, slots=True)
class NumBlocks:
    """A pool of that many blocks."""

    count: int


@dataclass(frozen=True, slots=True)
class KvBytes:
    """A pool of as many blocks as fit into that many bytes."""

    size_bytes: int


PoolSize = NumBlocks | KvBytes


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of one worker. Raises InvalidRequestError, `field` being the name of the bad value."""

    worker_id: WorkerId
    model_name: str
    """Name that clients call the model by."""
    redis_url: str = field(repr=False)
    """With the credential of the role of workers."""
    cluster_key: bytes = field(repr=False)
    """Key of the MAC of request tokens."""
    pool: PoolSize
    host_pool: PoolSize | None = None
    """Below the device, in this machine's memory; None: nothing is kept there."""
    disk_pool: PoolSize | None = None
    """Below the host; needs one."""
    disk_folder: Path | None = None
    """Where the disk's blocks lie, beside those of other workers."""
    runner: RunnerKind = RunnerKind.PAGED
    model_folder: Path | None = None
    """Hugging Face folder; the paged runner needs one, the digest runner takes none."""
    cache_dir: Path | None = None
    """Where weights digests and compiled kernels are kept; None: the user's cache folder."""
    tls: TlsFiles | None = None
    """Of its own machine; None: its port and its channels to other workers are plain."""
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    """0: any free port."""
    advertised_host: str = ""
    """Host that routers connect to; empty: `listen_host`."""
    token_budget: int = 512
    """Most tokens of one step."""
    max_num_sequences: int = 64
    """Most sequences that run at once."""
    max_waiting: int = 256
    """Requests that may wait; one more is refused."""
    eviction_policy: PolicyKind = PolicyKind.CLASS
    audit: AuditMode = AuditMode.SAMPLED
    torch_threads: int = 1
    device: str = "cpu"
    attention_backend: AttentionKind = AttentionKind.AUTO
    kv_dtype: KvChoice = KvChoice.AUTO
    numerics: Numerics = Numerics.FAST
    digest_step_s: float = 0.0
    """Seconds that a step of the digest runner takes at least."""
    digest_token_s: float = 0.0
    """Seconds for each prompt token of a step of the digest runner."""
    digest_load_block_s: float = 0.0
    """Seconds that a block takes from the host to the device of the digest runner."""
    digest_disk_block_s: float = 0.0
    """Seconds that it takes from disk."""
    metrics: MetricsListen | None = None
    """Where metrics are read; None: nowhere, and nothing is counted for them."""
    tracing: TracingSettings | None = None
    """Where spans go; None: there are none."""

    def __post_init__(self) -> None:
        _check(self)

    def fingerprint(self) -> str:
        """Differs where anything differs, secrets included, and tells none of them."""
        hidden = f"{self.redis_url} {self.metrics.token if self.metrics else ''} {self.cluster_key.hex()}"
        return blake2b(f"{self!r} {hidden}".encode(), key=self.cluster_key[:KEY_BYTES], digest_size=16).hexdigest()


def _check(config: WorkerConfig) -> None:
    _require(
        bool(_WORKER_ID.fullmatch(config.worker_id)),
        "worker_id",
        f"{config.worker_id!r} is no worker id; it has 1 to 64 lower case letters, digits, dots and dashes",
    )
    _require(bool(config.model_name.strip()), "model_name", "the model's name is empty; give the name clients call")
    _require(
        config.redis_url.startswith(_REDIS_SCHEMES),
        "redis_url",
        f"redis_url begins with none of {', '.join(_REDIS_SCHEMES)}",  # never the URL: it holds a password
    )
    _require(
        len(config.cluster_key) > 0 and len(config.cluster_key) % KEY_BYTES == 0,
        "cluster_key",
        f"the cluster key has {KEY_BYTES} bytes, not {len(config.cluster_key)}",
    )
    _check_runner(config)
    _check_address(config)
    _check_sizes(config)
    _check_tiers(config)


def _check_runner(config: WorkerConfig) -> None:
    if config.runner is RunnerKind.PAGED:
        _require(config.model_folder is not None, "model_folder", "the paged runner needs a model folder")
    else:
        _require(config.model_folder is None, "model_folder", "the digest runner has no model; leave the folder out")
        _require(config.kv_dtype is KvChoice.AUTO, "kv_dtype", "the digest runner has no keys to quantise; use auto")
        _require(config.numerics is Numerics.FAST, "numerics", "the digest runner adds nothing up; leave numerics out")
    if config.numerics is Numerics.DETERMINISTIC:
        _require(
            config.attention_backend is not AttentionKind.GATHER,
            "numerics",
            "plain torch attends in no fixed order; leave the attention back end out beside deterministic numerics",
        )
    _require(
        bool(_DEVICE.fullmatch(config.device)), "device", f"device is {config.device!r}; it is cpu, cuda or cuda:NUMBER"
    )
    for name, value in (
        ("digest_step_s", config.digest_step_s),
        ("digest_token_s", config.digest_token_s),
        ("digest_load_block_s", config.digest_load_block_s),
        ("digest_disk_block_s", config.digest_disk_block_s),
    ):
        _require(math.isfinite(value) and value >= 0, name, f"{name} is {value}; it is 0 or more seconds")


def _check_address(config: WorkerConfig) -> None:
    _require(
        0 <= config.listen_port <= 65_535,
        "listen_port",
        f"listen_port is {config.listen_port}; it is 0 (any free port) to 65535",
    )
    _require(bool(config.listen_host), "listen_host", "listen_host is empty; 127.0.0.1 stays on this machine")
    _require(
        bool(config.advertised_host) or not _is_unspecified(config.listen_host),
        "advertised_host",
        f"listen_host {config.listen_host} is no address to connect to; set advertised_host beside it",
    )


def _check_tiers(config: WorkerConfig) -> None:
    for name, pool in (("host_pool", config.host_pool), ("disk_pool", config.disk_pool)):
        if pool is not None:
            _require(_size(pool) >= 1, name, f"{name} is {_size(pool)}; it is at least 1, or left out")
    if config.disk_pool is not None:
        _require(
            config.host_pool is not None,
            "host_pool",
            "blocks reach the disk by way of the host's memory; give a host_pool beside the disk_pool",
        )
        _require(config.disk_folder is not None, "disk_folder", "a disk_pool needs a disk_folder to lie in")


def _size(pool: PoolSize) -> int:
    return pool.count if isinstance(pool, NumBlocks) else pool.size_bytes


def _check_sizes(config: WorkerConfig) -> None:
    counts = {
        "pool": _size(config.pool),
        "token_budget": config.token_budget,
        "max_num_sequences": config.max_num_sequences,
        "max_waiting": config.max_waiting,
        "torch_threads": config.torch_threads,
    }
    for name, value in counts.items():
        _require(value >= 1, name, f"{name} is {value}; it is at least 1")
    _require(
        config.token_budget >= config.max_num_sequences,
        "token_budget",
        f"token_budget {config.token_budget} is below max_num_sequences {config.max_num_sequences}: each running "
        "sequence needs one token of a step",
    )


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise InvalidRequestError(name, message)
