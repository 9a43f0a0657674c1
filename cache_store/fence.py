"""Up to where a tenant's cache was purged: its epoch, and marks of partitions and models that were purged in it.

From it follows the epoch of each domain, at routers, which derive domains, and at workers, which drop what has another.
Marks are random, like epochs: a purge makes everything older unreachable at once. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from cache_store.domain import Epoch, TenantId
from cache_store.encoding import encode

MAX_MARKS = 256
"""Of one tenant and epoch: one more is a new epoch, which needs none."""


class ScopeKind(StrEnum):
    """What of a tenant a mark is of."""

    PARTITION = "partition"
    MODEL = "model"


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """A partition over all models, or a model over all partitions."""

    kind: ScopeKind
    name: str


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """The last purge of a scope."""

    number: int
    """Purges of the scope in this epoch."""
    value: str
    """Random, never reused."""


FenceOrder = tuple[int, int]
"""Of two states of a tenant's fence the greater is the newer one."""


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
        """Rotations, then purges in the epoch."""
        return (self.epoch_number, sum(mark.number for mark in self.marks.values()))

    def epoch_of(self, partition: str, model: str) -> Epoch:
        """Epoch of the domains of a partition and model."""
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
