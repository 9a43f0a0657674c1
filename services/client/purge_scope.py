"""What of a tenant's cache to purge, and how that travels."""

from __future__ import annotations

from dataclasses import dataclass

from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2


@dataclass(frozen=True, slots=True)
class PurgeEverything:
    """All that the tenant has cached."""


@dataclass(frozen=True, slots=True)
class PurgePartition:
    """One partition, over all models."""

    partition: str
    """Empty: the tenant's common space."""


@dataclass(frozen=True, slots=True)
class PurgeModel:
    """One model, over all partitions."""

    model: str


PurgeScope = PurgeEverything | PurgePartition | PurgeModel


def fill_scope(message: cache_pb2.PurgeCacheRequest | admin_pb2.PurgeTenantCacheRequest, scope: PurgeScope) -> None:
    """Writes the scope."""
    match scope:
        case PurgeEverything():
            message.everything = True
        case PurgePartition(partition):
            message.partition = partition
        case PurgeModel(model):
            message.model = model
