"""How a control table is written down: one named JSON object per tenant, key, deleted tenant and adapter.

The same records stand in the fields of the Redis hash, in snapshots and in exported documents. Secrets are wrapped
here, and only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cache_store.domain import Epoch, TenantId
from cache_store.errors import CorruptDataError
from services.tenants.adapter import LoadedAdapter, adapter_fields, adapter_from
from services.tenants.fields import Fields, JsonObject, to_base64
from services.tenants.mark_record import mark_fields, marks_of
from services.tenants.master_key import MasterKey
from services.tenants.model import ApiKey, KeyId, Tenant
from services.tenants.quota_record import terms_fields, with_terms_of
from services.tenants.table import ControlTable, table_of

Entry = Tenant | ApiKey | LoadedAdapter | None
"""None stands for a deleted tenant."""

_SCHEMA_OF_QUOTAS = 2
"""The first one in which tenants have quotas and limits."""

_SCHEMA_OF_MARKS = 3
"""The first one in which parts of a tenant's cache were purged."""

_SCHEMA_OF_AUDITS = 4
"""The first one that tells which share of a tenant's hits is checked."""

_TENANT, _KEY, _DELETED, _ADAPTER = "tenant:", "key:", "deleted:", "adapter:"


def entries(table: ControlTable) -> dict[str, Entry]:
    """Everything in the table by the name of its record."""
    result: dict[str, Entry] = {_TENANT + tenant.id: tenant for tenant in table.tenants.values()}
    result.update({_KEY + key.key_id: key for key in table.keys.values()})
    result.update({_DELETED + tenant_id: None for tenant_id in table.deleted})
    result.update({_ADAPTER + adapter.name: adapter for adapter in table.adapters.values()})
    return result


def seal(entry: Entry, master: MasterKey) -> JsonObject:
    """The record of an entry."""
    match entry:
        case Tenant():
            return {
                "name": entry.name,
                "epoch": entry.epoch,
                "epoch_number": entry.epoch_number,
                "secret": to_base64(master.wrap(entry.id, entry.secret)),
                "create_unix_s": entry.create_unix_s,
                "epoch_unix_s": entry.epoch_unix_s,
                "terms": terms_fields(entry),
                "marks": mark_fields(entry.marks),
            }
        case ApiKey():
            return {
                "tenant": entry.tenant,
                "secret_hash": to_base64(entry.secret_hash),
                "create_unix_s": entry.create_unix_s,
                "revoked": entry.revoked,
            }
        case LoadedAdapter():
            return adapter_fields(entry)
        case None:
            return {}


def unseal(name: str, fields: Fields, master: MasterKey, schema: int) -> Entry:
    """The entry of a record of that schema. Raises CorruptDataError."""
    if name.startswith(_TENANT):
        return _tenant(TenantId(name.removeprefix(_TENANT)), fields, master, schema)
    if name.startswith(_KEY):
        return _key(KeyId(name.removeprefix(_KEY)), fields)
    if name.startswith(_DELETED):
        return None
    if name.startswith(_ADAPTER):
        return adapter_from(name.removeprefix(_ADAPTER), fields)
    raise CorruptDataError(f"{fields.what} is of a kind that this schema does not know")


def table_from(found: Mapping[str, Entry], what: str) -> ControlTable:
    """Inverse of `entries`. Raises CorruptDataError where the whole is damaged; `what` names the place."""
    table = table_of(
        (entry for entry in found.values() if isinstance(entry, Tenant)),
        (entry for entry in found.values() if isinstance(entry, ApiKey)),
        (TenantId(name.removeprefix(_DELETED)) for name, entry in found.items() if entry is None),
        (entry for entry in found.values() if isinstance(entry, LoadedAdapter)),
    )
    fault = table.fault()
    if fault is not None:
        raise CorruptDataError(f"{what} is damaged: {fault}")
    return table


def _tenant(tenant_id: TenantId, fields: Fields, master: MasterKey, schema: int) -> Tenant:
    tenant = Tenant(
        id=tenant_id,
        name=fields.text("name"),
        epoch=Epoch(fields.text("epoch")),
        epoch_number=fields.integer("epoch_number"),
        secret=master.unwrap(tenant_id, fields.data("secret")),
        create_unix_s=fields.number("create_unix_s"),
        epoch_unix_s=fields.number("epoch_unix_s"),
    )
    if schema >= _SCHEMA_OF_QUOTAS:
        has_audits = schema >= _SCHEMA_OF_AUDITS
        tenant = with_terms_of(fields.fields("terms"), tenant, ("audit_share",) if has_audits else ())
    if schema >= _SCHEMA_OF_MARKS:
        tenant = replace(tenant, marks=marks_of(fields.fields("marks")))
    return tenant


def _key(key_id: KeyId, fields: Fields) -> ApiKey:
    return ApiKey(
        key_id=key_id,
        tenant=TenantId(fields.text("tenant")),
        secret_hash=fields.data("secret_hash"),
        create_unix_s=fields.number("create_unix_s"),
        revoked=fields.flag("revoked"),
    )
