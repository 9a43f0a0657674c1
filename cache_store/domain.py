"""Whose KV may be reused by whom.

A domain is (tenant, epoch, partition, KV format). Its root is a keyed hash under the tenant's secret: without the
secret nobody can name a domain, and no two different tuples share a root. Everything cached hangs below a root. Outside
the router, which derives domains, partition and model go by keyed names: a partition may be called after a person.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from cache_store.encoding import encode

TenantId = NewType("TenantId", str)
"""Canonical text of the tenant's uuid."""

Epoch = NewType("Epoch", str)
"""Random, never reused; a new one makes everything older unreachable."""

FormatDigest = NewType("FormatDigest", bytes)
"""16 bytes naming a KV format."""

AdapterDigest = NewType("AdapterDigest", bytes)
"""32 bytes naming an adapter by its content; empty for the model without one."""

NO_ADAPTER = AdapterDigest(b"")

DomainTag = NewType("DomainTag", bytes)
"""16 bytes naming a domain where its root must not appear: keys of the index, headers of stored blocks."""

ScopeName = NewType("ScopeName", str)
"""Names a partition or a model of one tenant where its text must not appear; 32 hex digits."""

ROOT_BYTES = 32
SECRET_BYTES = 32


class ScopeKind(StrEnum):
    """What of a tenant a name is of."""

    PARTITION = "partition"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Everything that changes the bytes of keys and values."""

    weights_digest: bytes
    adapter_digest: AdapterDigest
    """Empty without an adapter."""
    attention: str
    """Canonical text of RoPE and attention configuration."""
    model_dtype: str
    kv_dtype: str
    block_size: int
    """Tokens per block."""
    layout_version: int

    def digest(self) -> FormatDigest:
        """16 bytes; equal exactly where all fields are equal."""
        data = encode(
            self.weights_digest,
            self.adapter_digest,
            self.attention,
            self.model_dtype,
            self.kv_dtype,
            self.block_size,
            self.layout_version,
        )
        return FormatDigest(hashlib.blake2b(data, digest_size=16, person=b"sc-kv-format").digest())


@dataclass(frozen=True, slots=True)
class Domain:
    """Made by `derive_domain`, or at a worker from verified claims; nowhere else."""

    tenant: TenantId
    epoch: Epoch
    """Of the partition and model: another one than the tenant's where these were purged by themselves."""
    partition: ScopeName
    kv_format: FormatDigest
    root: bytes
    """32 secret bytes: knowing them is the right to name blocks of the domain."""
    model: ScopeName
    """Through which the domain was reached; not part of the root."""
    tenant_epoch: Epoch
    tag: DomainTag = field(init=False, compare=False)
    """Public name of the domain; does not tell the root."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", tag_of(self.root))


def tag_of(root: bytes) -> DomainTag:
    """Public name of the domain with this root."""
    return DomainTag(hashlib.blake2b(root, digest_size=16, person=b"sc-domain-tag").digest())


def derive_domain(
    secret: bytes,
    tenant: TenantId,
    epoch: Epoch,
    partition: str,
    kv_format: FormatDigest,
    model: str = "",
    tenant_epoch: Epoch | None = None,
) -> Domain:
    """The domain of `partition` of a tenant. `secret` is the tenant's, 32 bytes; `tenant_epoch` None: it is `epoch`."""
    data = encode(tenant, epoch, partition, bytes(kv_format))
    root = hashlib.blake2b(data, key=_checked(secret), digest_size=ROOT_BYTES, person=b"sc-domain-root").digest()
    return Domain(
        tenant=tenant,
        epoch=epoch,
        partition=scope_name(secret, ScopeKind.PARTITION, partition),
        kv_format=kv_format,
        root=root,
        model=scope_name(secret, ScopeKind.MODEL, model),
        tenant_epoch=epoch if tenant_epoch is None else tenant_epoch,
    )


def scope_name(secret: bytes, kind: ScopeKind, name: str) -> ScopeName:
    """Name of a partition or model of the tenant whose `secret` it is."""
    data = encode(kind.value, name)
    digest = hashlib.blake2b(data, key=_checked(secret), digest_size=16, person=b"sc-scope-name")
    return ScopeName(digest.hexdigest())


def _checked(secret: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a tenant secret has {SECRET_BYTES} bytes, not {len(secret)}")
    return secret
