"""Fences for tests, of tenants whose secrets are those of `tests.support.domains`."""

from __future__ import annotations

import hashlib
from types import MappingProxyType

from cache_store.domain import Domain, Epoch, FormatDigest, ScopeKind, TenantId, scope_name
from cache_store.fence import Fence, FenceTable, Mark, Scope, derive_fenced_domain
from tests.support.domains import FORMAT


def make_fence(
    tenant: str = "acme", epoch_number: int = 0, partitions: dict[str, int] | None = None, model: int = 0
) -> Fence:
    """A fence after so many rotations, and purges of partitions and of the model `m` since the last."""
    marks = {
        Scope(ScopeKind.PARTITION, scope_name(_secret(tenant), ScopeKind.PARTITION, name)): Mark(
            number, f"{name}{number}"
        )
        for name, number in (partitions or {}).items()
    }
    if model:
        marks[Scope(ScopeKind.MODEL, scope_name(_secret(tenant), ScopeKind.MODEL, "m"))] = Mark(model, f"m{model}")
    return Fence(TenantId(tenant), Epoch(f"e{epoch_number}"), epoch_number, MappingProxyType(marks))


def fenced_domain(fence: Fence, partition: str = "", kv_format: FormatDigest = FORMAT) -> Domain:
    """The domain of a partition over the model `m`."""
    return derive_fenced_domain(_secret(fence.tenant), fence, partition, "m", kv_format)


def make_table(generation: int, *fences: Fence) -> FenceTable:
    """Fences of all tenants that live."""
    return FenceTable(generation, MappingProxyType({fence.tenant: fence for fence in fences}))


def _secret(tenant: str) -> bytes:
    return hashlib.blake2b(tenant.encode(), digest_size=32).digest()
