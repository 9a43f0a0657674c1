"""Purges as changes of a tenant's record: a fresh epoch for everything, a mark for a partition or a model. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from cache_store.domain import Epoch, ScopeKind, scope_name
from cache_store.fence import MAX_MARKS, Mark, Scope
from services.tenants.model import Tenant, new_epoch, new_mark_value


@dataclass(frozen=True, slots=True)
class Everything:
    """All that a tenant has cached."""


EVERYTHING = Everything()


@dataclass(frozen=True, slots=True)
class PartitionScope:
    """A partition, over all models; the empty name: the tenant's common space."""

    partition: str


@dataclass(frozen=True, slots=True)
class ModelScope:
    """A model, over all partitions."""

    model: str


PurgeScope = Everything | PartitionScope | ModelScope


@dataclass(frozen=True, slots=True)
class Purge:
    """A purge to be written; its random parts are drawn once, so that writing it twice is writing it once."""

    scope: PurgeScope
    epoch: Epoch
    """Used where everything is purged, or where there are too many marks."""
    mark_value: str
    unix_s: float


def new_purge(scope: PurgeScope, now_unix_s: float) -> Purge:
    """A purge of `scope`."""
    return Purge(scope, new_epoch(), new_mark_value(), now_unix_s)


def rotated(tenant: Tenant, epoch: Epoch, now_unix_s: float) -> Tenant:
    """The tenant in another epoch, which needs no marks."""
    return replace(
        tenant,
        epoch=epoch,
        epoch_number=tenant.epoch_number + 1,
        epoch_unix_s=now_unix_s,
        marks=MappingProxyType({}),
    )


def purged(tenant: Tenant, purge: Purge) -> Tenant:
    """The tenant after the purge."""
    match purge.scope:
        case Everything():
            return rotated(tenant, purge.epoch, purge.unix_s)
        case PartitionScope(partition):
            return _marked(tenant, ScopeKind.PARTITION, partition, purge)
        case ModelScope(model):
            return _marked(tenant, ScopeKind.MODEL, model, purge)


def _marked(tenant: Tenant, kind: ScopeKind, name: str, purge: Purge) -> Tenant:
    scope = Scope(kind, scope_name(tenant.secret, kind, name))
    before = tenant.marks.get(scope)
    if before is None and len(tenant.marks) >= MAX_MARKS:
        return rotated(tenant, purge.epoch, purge.unix_s)
    mark = Mark(before.number + 1 if before else 1, purge.mark_value)
    return replace(tenant, marks=MappingProxyType({**tenant.marks, scope: mark}))
