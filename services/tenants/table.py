"""The control data as one immutable value, and every change of it as a pure function.

`join` is what keeps a lost or rolled-back store from undoing anything: it only ever adds. A key once revoked stays
revoked, a tenant once deleted stays deleted, the epoch with more rotations wins, and so does the quota with more
changes. Joining is commutative, idempotent and absorbs what it has already taken in, so that routers which join what
they know into one store end up equal. Guarantees of two stores that exceed a tier together are all kept; which of them
are in force says `services/tenants/guarantees.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from cache_store.domain import SECRET_BYTES, Epoch, TenantId
from cache_store.errors import AlreadyExistsError, NotFoundError, PreconditionError
from cache_store.fence import joined_marks
from cache_store.quota import DEFAULT_QUOTA, check_raise
from services.tenants.adapter import Adapters, LoadedAdapter, joined
from services.tenants.model import MAX_LIVE_KEYS, ApiKey, KeyId, Tenant
from services.tenants.purge import Purge, purged, rotated
from services.tenants.quota_change import QuotaChange, changed_limits, changed_quota, quota_order


@dataclass(frozen=True)
class ControlTable:
    """All tenants, all keys, the ids of tenants that were deleted, and adapters."""

    tenants: Mapping[TenantId, Tenant] = field(default_factory=lambda: MappingProxyType({}))
    keys: Mapping[KeyId, ApiKey] = field(default_factory=lambda: MappingProxyType({}))
    deleted: frozenset[TenantId] = frozenset()
    adapters: Adapters = field(default_factory=lambda: MappingProxyType({}))

    def tenant_by_name(self, name: str) -> Tenant:
        """The living tenant of that name. Raises NotFoundError."""
        for tenant in self.tenants.values():
            if tenant.name == name:
                return tenant
        raise NotFoundError(f"there is no tenant named {name[:64]!r}; `stemcache tenants list` shows those there are")

    def keys_of(self, tenant: TenantId) -> list[ApiKey]:
        """Keys of a tenant, oldest first, revoked ones too."""
        found = [key for key in self.keys.values() if key.tenant == tenant]
        return sorted(found, key=lambda key: (key.create_unix_s, key.key_id))

    def num_live_keys(self, tenant: TenantId) -> int:
        """Keys of a tenant that work."""
        return sum(1 for key in self.keys_of(tenant) if not key.revoked)

    def num_revoked_keys(self) -> dict[TenantId, int]:
        """Keys that were revoked, of tenants that have any. Joining tables never makes it smaller."""
        return dict(Counter(key.tenant for key in self.keys.values() if key.revoked))

    def fault(self) -> str | None:
        """What is wrong with the table as a whole, or None."""
        names = [tenant.name for tenant in self.tenants.values()]
        if len(set(names)) != len(names):
            return "two tenants have the same name"
        if self.deleted & self.tenants.keys():
            return "a tenant is both alive and deleted"
        for tenant in self.tenants.values():
            if len(tenant.secret) != SECRET_BYTES:
                return f"the secret of tenant {tenant.id} has {len(tenant.secret)} bytes"
        for key in self.keys.values():
            if key.tenant not in self.tenants:
                return f"key {key.key_id} belongs to no tenant"
        return None

    def check_invariants(self) -> None:
        """Raises AssertionError where the table is not whole."""
        fault = self.fault()
        assert fault is None, fault
        assert all(tenant_id == tenant.id for tenant_id, tenant in self.tenants.items())
        assert all(key_id == key.key_id for key_id, key in self.keys.items())
        assert all(name == adapter.name for name, adapter in self.adapters.items())


def table_of(
    tenants: Iterable[Tenant],
    keys: Iterable[ApiKey],
    deleted: Iterable[TenantId],
    adapters: Iterable[LoadedAdapter] = (),
) -> ControlTable:
    """A table of these records."""
    return ControlTable(
        MappingProxyType({tenant.id: tenant for tenant in tenants}),
        MappingProxyType({key.key_id: key for key in keys}),
        frozenset(deleted),
        MappingProxyType({adapter.name: adapter for adapter in adapters}),
    )


def add_tenant(table: ControlTable, tenant: Tenant) -> ControlTable:
    """Raises AlreadyExistsError where a living tenant has the name, PreconditionError for a guarantee beyond what is
    free."""
    if any(other.name == tenant.name for other in table.tenants.values()):
        raise AlreadyExistsError(f"a tenant named {tenant.name!r} exists already; choose another name")
    check_raise(DEFAULT_QUOTA, tenant.quota, (other.quota for other in table.tenants.values()))
    return _put_tenant(table, tenant)


def delete_tenant(table: ControlTable, name: str) -> ControlTable:
    """Without the tenant and its keys. Raises NotFoundError."""
    gone = table.tenant_by_name(name).id
    tenants = (tenant for tenant in table.tenants.values() if tenant.id != gone)
    keys = (key for key in table.keys.values() if key.tenant != gone)
    return table_of(tenants, keys, table.deleted | {gone}, table.adapters.values())


def rotate_epoch(table: ControlTable, name: str, epoch: Epoch, now_unix_s: float) -> ControlTable:
    """With another epoch of the tenant. Raises NotFoundError."""
    return _put_tenant(table, rotated(table.tenant_by_name(name), epoch, now_unix_s))


def purge_tenant(table: ControlTable, tenant_id: TenantId, purge: Purge) -> ControlTable:
    """With what is in the purge's scope unreachable. Raises NotFoundError."""
    tenant = table.tenants.get(tenant_id)
    if tenant is None:
        raise NotFoundError("the tenant was deleted")
    return _put_tenant(table, purged(tenant, purge))


def set_quota(table: ControlTable, name: str, change: QuotaChange, now_unix_s: float) -> ControlTable:
    """With another quota and other limits of the tenant; the same table where the change changes nothing.

    Raises NotFoundError, InvalidRequestError, PreconditionError for a guarantee beyond what is free.
    """
    old = table.tenant_by_name(name)
    quota, limits = changed_quota(old.quota, change), changed_limits(old.limits, change)
    if (quota, limits) == (old.quota, old.limits):
        return table
    check_raise(old.quota, quota, (other.quota for other in table.tenants.values() if other.id != old.id))
    number = old.quota_number + 1
    return _put_tenant(table, replace(old, quota=quota, limits=limits, quota_number=number, quota_unix_s=now_unix_s))


def add_key(table: ControlTable, key: ApiKey) -> ControlTable:
    """Raises PreconditionError where the tenant has all the live keys that it may have."""
    live = [other.key_id for other in table.keys_of(key.tenant) if not other.revoked]
    if len(live) >= MAX_LIVE_KEYS:
        name = table.tenants[key.tenant].name
        raise PreconditionError(
            f"tenant {name!r} has {len(live)} live keys ({', '.join(live)}) and may have {MAX_LIVE_KEYS}; "
            "revoke one, then make a new one"
        )
    return _put_key(table, key)


def revoke_key(table: ControlTable, key_id: KeyId) -> ControlTable:
    """With the key revoked. Raises NotFoundError for an id that was never given out."""
    key = table.keys.get(key_id)
    if key is None:
        raise NotFoundError(f"there is no key {key_id[:64]!r}; `stemcache tenants keys` shows those there are")
    return _put_key(table, replace(key, revoked=True))


def join(a: ControlTable, b: ControlTable) -> ControlTable:
    """Everything that either knows. Order does not matter, and nothing that either has ended lives on."""
    deleted = a.deleted | b.deleted
    ids = (a.tenants.keys() | b.tenants.keys()) - deleted
    tenants = _with_unique_names(_join_tenant(a.tenants.get(i), b.tenants.get(i)) for i in ids)
    keys = [_join_key(a.keys.get(i), b.keys.get(i)) for i in a.keys.keys() | b.keys.keys()]
    adapters = joined(a.adapters, b.adapters)
    return table_of(tenants, (key for key in keys if key.tenant in ids), deleted, adapters.values())


def name_conflicts(a: ControlTable, b: ControlTable) -> list[str]:
    """Names that living tenants of different identity have in `a` and in `b`."""
    ids = {tenant.name: tenant.id for tenant in a.tenants.values() if tenant.id not in b.deleted}
    others = (tenant for tenant in b.tenants.values() if tenant.id not in a.deleted)
    return sorted(tenant.name for tenant in others if ids.get(tenant.name, tenant.id) != tenant.id)


def _join_tenant(a: Tenant | None, b: Tenant | None) -> Tenant:
    if a is b or a is None or b is None or a == b:
        one = a or b
        assert one is not None
        return one
    newer = max(a, b, key=_epoch_order)
    terms = max(a, b, key=lambda tenant: (tenant.quota_number, tenant.quota_unix_s, quota_order(tenant)))
    return replace(
        newer,
        # A name changes in one way only: a suffix is added where two tenants came to have the same.
        name=max(a.name, b.name, key=lambda name: (len(name), name)),
        marks=joined_marks(a.marks, b.marks) if _epoch_order(a) == _epoch_order(b) else newer.marks,
        quota=terms.quota,
        limits=terms.limits,
        quota_number=terms.quota_number,
        quota_unix_s=terms.quota_unix_s,
    )


def _epoch_order(tenant: Tenant) -> tuple[int, Epoch, float, bytes]:
    """Orders different epochs as `Fence.order` does: by rotations, then in some way that is the same everywhere."""
    return (tenant.epoch_number, tenant.epoch, tenant.epoch_unix_s, tenant.secret)


def _join_key(a: ApiKey | None, b: ApiKey | None) -> ApiKey:
    if a is None or b is None or a == b:
        one = a or b
        assert one is not None
        return one
    return replace(max(a, b, key=lambda key: key.secret_hash), revoked=a.revoked or b.revoked)


def _with_unique_names(tenants: Iterable[Tenant]) -> list[Tenant]:
    """The oldest tenant of a name keeps it; later ones get part of their id appended."""
    tenants = list(tenants)
    if len({tenant.name for tenant in tenants}) == len(tenants):
        return tenants
    taken: set[str] = set()
    result: list[Tenant] = []
    for tenant in sorted(tenants, key=lambda tenant: (tenant.create_unix_s, tenant.id)):
        name = tenant.name
        while name in taken:
            name = f"{name}-{tenant.id[:8]}"
        taken.add(name)
        result.append(tenant if tenant.name == name else replace(tenant, name=name))
    return result


def _put_tenant(table: ControlTable, tenant: Tenant) -> ControlTable:
    return replace(table, tenants=MappingProxyType({**table.tenants, tenant.id: tenant}))


def _put_key(table: ControlTable, key: ApiKey) -> ControlTable:
    return replace(table, keys=MappingProxyType({**table.keys, key.key_id: key}))
