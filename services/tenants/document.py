"""All control data as one JSON document under a MAC: a router's snapshot, or what an operator exports.

The two kinds have keys of their own, so that one cannot stand in for the other. Secrets inside are wrapped. Whoever
cannot make the MAC can neither change a document nor make one up.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

from cache_store.errors import CorruptDataError
from services.tenants.fields import Fields, object_of_texts, parse_object, to_json, value_to_json
from services.tenants.master_key import MasterKey
from services.tenants.records import Entry, entries, seal, table_from, unseal
from services.tenants.state import CONTROL_SCHEMA, ControlState, head_of, readable_schema, require_master
from services.tenants.table import ControlTable


class DocumentKind(StrEnum):
    """What a document is for."""

    SNAPSHOT = "snapshot"
    EXPORT = "export"


class Sealer:
    """Writes records of what has changed; of a record that was written before it gives that."""

    def __init__(self, master: MasterKey) -> None:
        self.master = master
        self._written: dict[str, tuple[Entry, str]] = {}

    def records(self, table: ControlTable) -> str:
        """All records of a table, by name."""
        known, self._written = self._written, {}
        for name, entry in entries(table).items():
            before = known.get(name)
            if before is None or before[0] is not entry:
                before = (entry, to_json(seal(entry, self.master)))
            self._written[name] = before
        return object_of_texts({name: text for name, (_, text) in self._written.items()})


def write_document(kind: DocumentKind, state: ControlState, sealer: Sealer) -> bytes:
    """The state as a document, ending in a newline."""
    master = sealer.master
    texts = {
        "format": value_to_json("stemcache control data"),
        "kind": value_to_json(kind.value),
        "schema": value_to_json(CONTROL_SCHEMA),
        "master_key_id": value_to_json(master.key_id),
        "head": value_to_json(state.head.to_fields() if state.head else None),
        "records": sealer.records(state.table),
    }
    mac = _mac(kind, object_of_texts(texts), master)
    return (object_of_texts({**texts, "mac": value_to_json(mac)}) + "\n").encode("ascii")


def read_document(kind: DocumentKind, data: bytes, master: MasterKey, what: str) -> ControlState:
    """The state in a document.

    Raises VersionError for another schema, PreconditionError for another master key, CorruptDataError for a MAC that
    does not fit; `what` names the document to the reader.
    """
    document = parse_object(data, what)
    schema = readable_schema(document)
    master = require_master(document.text("master_key_id"), master, what)
    _require_mac(kind, document, master)
    head = None if document.values.get("head") is None else head_of(document.fields("head"))
    records = document.fields("records")
    found = {name: unseal(name, records.fields(name), master, schema) for name in records.values}
    return ControlState(head, table_from(found, what))


def document_key(data: bytes) -> str:
    """Id of the master key that a document is under. Raises CorruptDataError."""
    return parse_object(data, "the document").text("master_key_id")


def _require_mac(kind: DocumentKind, document: Fields, master: MasterKey) -> None:
    body = {name: value for name, value in document.values.items() if name != "mac"}
    try:
        expected = _mac(kind, to_json(body), master)
    except (ValueError, RecursionError) as error:  # numbers and depths that we do not write
        raise CorruptDataError(f"{document.what} holds values that no {kind.value} has") from error
    if not hmac.compare_digest(document.text("mac").encode("utf-8", "surrogatepass"), expected.encode("ascii")):
        raise CorruptDataError(f"the MAC of {document.what} does not fit: it was changed, or is no {kind.value}")


def _mac(kind: DocumentKind, body: str, master: MasterKey) -> str:
    key = master.snapshot_mac_key if kind is DocumentKind.SNAPSHOT else master.export_mac_key
    return hashlib.blake2b(body.encode("ascii"), key=key, digest_size=32, person=b"sc-document").hexdigest()
