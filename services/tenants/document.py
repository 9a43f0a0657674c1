"""All control data as one JSON document under a MAC: a router's snapshot, or what an operator exports.

The two kinds have keys of their own, so that one cannot stand in for the other. Secrets inside are wrapped. Whoever
cannot make the MAC can neither change a document nor make one up.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

from cache_store.errors import CorruptDataError
from services.tenants.fields import Fields, JsonObject, parse_object, to_json
from services.tenants.master_key import MasterKey
from services.tenants.records import entries, seal, table_from, unseal
from services.tenants.state import CONTROL_SCHEMA, ControlState, head_of, readable_schema, require_master


class DocumentKind(StrEnum):
    """What a document is for."""

    SNAPSHOT = "snapshot"
    EXPORT = "export"


def write_document(kind: DocumentKind, state: ControlState, master: MasterKey) -> bytes:
    """The state as a document, ending in a newline."""
    body: JsonObject = {
        "format": "stemcache control data",
        "kind": kind.value,
        "schema": CONTROL_SCHEMA,
        "master_key_id": master.key_id,
        "head": state.head.to_fields() if state.head else None,
        "records": {name: seal(entry, master) for name, entry in sorted(entries(state.table).items())},
    }
    return (to_json({**body, "mac": _mac(kind, body, master)}) + "\n").encode("ascii")


def read_document(kind: DocumentKind, data: bytes, master: MasterKey, what: str) -> ControlState:
    """The state in a document.

    Raises VersionError for another schema, PreconditionError for another master key, CorruptDataError for a MAC that
    does not fit; `what` names the document to the reader.
    """
    document = parse_object(data, what)
    schema = readable_schema(document)
    require_master(document.text("master_key_id"), master, what)
    _require_mac(kind, document, master)
    head = None if document.values.get("head") is None else head_of(document.fields("head"))
    records = document.fields("records")
    found = {name: unseal(name, records.fields(name), master, schema) for name in records.values}
    return ControlState(head, table_from(found, what))


def _require_mac(kind: DocumentKind, document: Fields, master: MasterKey) -> None:
    body = {name: value for name, value in document.values.items() if name != "mac"}
    try:
        expected = _mac(kind, body, master)
    except (ValueError, RecursionError) as error:  # numbers and depths that we do not write
        raise CorruptDataError(f"{document.what} holds values that no {kind.value} has") from error
    if not hmac.compare_digest(document.text("mac").encode("utf-8", "surrogatepass"), expected.encode("ascii")):
        raise CorruptDataError(f"the MAC of {document.what} does not fit: it was changed, or is no {kind.value}")


def _mac(kind: DocumentKind, body: JsonObject, master: MasterKey) -> str:
    key = master.snapshot_mac_key if kind is DocumentKind.SNAPSHOT else master.export_mac_key
    return hashlib.blake2b(to_json(body).encode("ascii"), key=key, digest_size=32, person=b"sc-document").hexdigest()
