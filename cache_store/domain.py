"""Whose KV may be reused by whom.

A domain is (tenant, epoch, partition, KV format). Its root is a keyed hash under the tenant's secret: without the
secret nobody can name a domain, and no two different tuples share a root. Everything cached hangs below a root.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NewType

from cache_store.encoding import encode

TenantId = NewType("TenantId", str)
"""Canonical text of the tenant's uuid."""

Epoch = NewType("Epoch", str)
"""Random, never reused; a new one makes everything older unreachable."""

FormatDigest = NewType("FormatDigest", bytes)
"""16 bytes naming a KV format."""

DomainTag = NewType("DomainTag", bytes)
"""16 bytes naming a domain where its root must not appear: keys of the index, headers of stored blocks."""

ROOT_BYTES = 32
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Everything that changes the bytes of keys and values."""

    weights_digest: bytes
    adapter_digest: bytes
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
    partition: str
    kv_format: FormatDigest
    root: bytes
    """32 secret bytes: knowing them is the right to name blocks of the domain."""

    @property
    def tag(self) -> DomainTag:
        """Public name of the domain; does not tell the root."""
        return tag_of(self.root)


def tag_of(root: bytes) -> DomainTag:
    """Public name of the domain with this root."""
    return DomainTag(hashlib.blake2b(root, digest_size=16, person=b"sc-domain-tag").digest())


def derive_domain(secret: bytes, tenant: TenantId, epoch: Epoch, partition: str, kv_format: FormatDigest) -> Domain:
    """The domain of `partition` of a tenant. `secret` is the tenant's, 32 bytes."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a tenant secret has {SECRET_BYTES} bytes, not {len(secret)}")
    data = encode(tenant, epoch, partition, bytes(kv_format))
    root = hashlib.blake2b(data, key=secret, digest_size=ROOT_BYTES, person=b"sc-domain-root").digest()
    return Domain(tenant, epoch, partition, kv_format, root)
