"""Domains for tests: real derivation, fixed secrets."""

from __future__ import annotations

import hashlib

from cache_store.domain import Domain, Epoch, FormatDigest, TenantId, derive_domain

FORMAT = FormatDigest(b"f" * 16)


def make_domain(
    tenant: str = "acme", partition: str = "", epoch: str = "e1", kv_format: FormatDigest = FORMAT
) -> Domain:
    """Domain of a tenant whose secret is a function of its name."""
    secret = hashlib.blake2b(tenant.encode(), digest_size=32).digest()
    return derive_domain(secret, TenantId(tenant), Epoch(epoch), partition, kv_format)
