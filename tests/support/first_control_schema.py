"""Control data as the builds before quotas wrote it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from services.tenants.document import DocumentKind, write_document
from services.tenants.fields import to_json
from services.tenants.state import ControlState
from tests.support.control import MASTER


def first_schema_record(text: str | bytes) -> str:
    """A record, or a head, of schema 1."""
    fields = json.loads(text)
    fields.pop("terms", None)
    return to_json(fields | ({"schema": 1} if "schema" in fields else {}))


def first_schema_document(kind: DocumentKind, state: ControlState) -> bytes:
    """A document of schema 1."""
    body: dict[str, Any] = json.loads(write_document(kind, state, MASTER))
    del body["mac"]
    body["schema"] = body["head"]["schema"] = 1
    body["records"] = {name: json.loads(first_schema_record(to_json(each))) for name, each in body["records"].items()}
    key = MASTER.snapshot_mac_key if kind is DocumentKind.SNAPSHOT else MASTER.export_mac_key
    mac = hashlib.blake2b(to_json(body).encode(), key=key, digest_size=32, person=b"sc-document").hexdigest()
    return to_json({**body, "mac": mac}).encode()
