"""Control data as earlier builds wrote it: schema 1 had no quotas, 2 no purge marks, 3 neither adapters nor audits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from services.tenants.document import DocumentKind, Sealer, write_document
from services.tenants.fields import to_json
from services.tenants.state import ControlState
from tests.support.control import MASTER

_LATER_FIELDS: dict[int, tuple[str, ...]] = {1: ("terms", "marks"), 2: ("marks",), 3: ()}


def old_record(text: str | bytes, schema: int) -> str:
    """A record, or a head, of that schema."""
    fields = json.loads(text)
    for name in _LATER_FIELDS[schema]:
        fields.pop(name, None)
    if "terms" in fields:
        del fields["terms"]["audit_share"]
    return to_json(fields | ({"schema": schema} if "schema" in fields else {}))


def old_document(kind: DocumentKind, state: ControlState, schema: int) -> bytes:
    """A document of that schema."""
    body: dict[str, Any] = json.loads(write_document(kind, state, Sealer(MASTER)))
    del body["mac"]
    body["schema"] = body["head"]["schema"] = schema
    body["records"] = {name: json.loads(old_record(to_json(each), schema)) for name, each in body["records"].items()}
    key = MASTER.snapshot_mac_key if kind is DocumentKind.SNAPSHOT else MASTER.export_mac_key
    mac = hashlib.blake2b(to_json(body).encode(), key=key, digest_size=32, person=b"sc-document").hexdigest()
    return to_json({**body, "mac": mac}).encode()
