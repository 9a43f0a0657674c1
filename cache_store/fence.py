"""Up to where a tenant's cache was purged: its epoch, and marks of partitions and models that were purged in it.

From it follows the epoch of each domain, at routers, which derive domains, and at workers, which drop what has another.
Marks are random, like epochs: a purge makes everything older unreachable at once. Partitions and models go by keyed
names here (`ScopeName`). Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from cache_store.domain import Domain, Epoch, FormatDigest, ScopeKind, ScopeName, TenantId, derive_domain, scope_name
from cache_store.encoding import encode

MAX_MARKS = 256
"""Of one tenant and epoch: one more is a new epoch, which needs none."""


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """A partition over all models, or a model over all partitions."""

    kind: ScopeKind
    name: ScopeName


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """The last purge of a scope."""

    number: int
    """Purges of the scope in this epoch."""
    value: str
    """Random, never reused."""


def joined_marks(a: Mapping[Scope, Mark], b: Mapping[Scope, Mark]) -> Mapping[Scope, Mark]:
    """Of each scope the later mark, of two states of one epoch."""
    if a == b:
        return a
    return MappingProxyType(
        {scope: max(each[scope] for each in (a, b) if scope in each) for scope in a.keys() | b.keys()}
    )


FenceOrder = tuple[int, Epoch, int]
"""Of two states of a tenant's fence the greater is the newer one. Joining control data never makes it smaller."""


@dataclass(frozen=True, slots=True)
class Fence:
    """One tenant's."""

    tenant: TenantId
    epoch: Epoch
    epoch_number: int
    """Rotations since the tenant was made."""
    marks: Mapping[Scope, Mark] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def order(self) -> FenceOrder:
        """Rotations, then the epoch (two stores may have rotated once each), then purges in it."""
        return (self.epoch_number, self.epoch, sum(mark.number for mark in self.marks.values()))

    def joined(self, other: Fence) -> Fence:
        """What either says: the newer one, with the marks of both where they are of one epoch."""
        if self.order[:2] != other.order[:2]:
            return max(self, other, key=lambda fence: fence.order)
        return replace(self, marks=joined_marks(self.marks, other.marks))

    def epoch_of(self, partition: ScopeName, model: ScopeName) -> Epoch:
        """Epoch of the domains of a partition and model."""
        if not self.marks:
            return self.epoch
        partition_mark = self.marks.get(Scope(ScopeKind.PARTITION, partition))
        model_mark = self.marks.get(Scope(ScopeKind.MODEL, model))
        if partition_mark is None and model_mark is None:
            return self.epoch
        data = encode(
            self.epoch,
            partition_mark.value if partition_mark else "",
            model_mark.value if model_mark else "",
        )
        return Epoch(hashlib.blake2b(data, digest_size=16, person=b"sc-purge-epoch").hexdigest())

    def is_current(self, domain: Domain) -> bool:
        """Whether the tenant's domain has the epoch that it has now, by this fence: it has not been purged."""
        return domain.epoch == self.epoch_of(domain.partition, domain.model)

    def admits(self, domain: Domain, order: FenceOrder) -> bool:
        """Whether something may be reused or stored for a request with the tenant's domain.

        `order` is that of the fence by which the domain was derived: who knew more than this fence is right.
        """
        return order > self.order or self.is_current(domain)


@dataclass(frozen=True, slots=True)
class FenceTable:
    """The fences of all tenants that live, as of one state of the control data."""

    generation: int
    """Of the control data; 0: nothing is known."""
    fences: Mapping[TenantId, Fence] = field(default_factory=lambda: MappingProxyType({}))
    revoked_keys: Mapping[TenantId, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many keys of each tenant were ever revoked, 0 being left out. A router that knows fewer lets in holders of
    the others."""


NO_FENCES = FenceTable(0)


@dataclass(frozen=True, slots=True)
class FenceNotice:
    """What a worker is told about one tenant ahead of the published table."""

    tenant: TenantId
    fence: Fence | None
    """None: the tenant is deleted."""
    generation: int
    """Of the control data of which this is true."""


def derive_fenced_domain(secret: bytes, fence: Fence, partition: str, model: str, kv_format: FormatDigest) -> Domain:
    """The domain that requests of the fence's tenant have now. `secret` is the tenant's."""
    partition_name = scope_name(secret, ScopeKind.PARTITION, partition)
    epoch = fence.epoch_of(partition_name, scope_name(secret, ScopeKind.MODEL, model))
    return derive_domain(secret, fence.tenant, epoch, partition, kv_format, model, fence.epoch)
