"""Documents under a MAC: what comes back, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cache_store.errors import CorruptDataError, PreconditionError, VersionError
from services.tenants.api_key import new_api_key
from services.tenants.document import DocumentKind, Sealer, read_document, write_document
from services.tenants.model import new_tenant
from services.tenants.state import CONTROL_SCHEMA, EMPTY_STATE, ControlState, Head
from services.tenants.table import add_key, add_tenant, delete_tenant, table_of
from tests.support.control import MASTER, OTHER_MASTER
from tests.support.old_control_schemas import old_document


def some_state() -> ControlState:
    tenant = new_tenant("acme", 1.5)
    table = add_tenant(add_tenant(table_of([], [], []), tenant), new_tenant("gone", 2.5))
    table = delete_tenant(add_key(table, new_api_key(tenant.id, 3.25).key), "gone")
    return ControlState(Head("store", 7, "write", MASTER.key_id), table)


@pytest.mark.parametrize("kind", list(DocumentKind))
@pytest.mark.parametrize("state", [EMPTY_STATE, some_state()], ids=["empty", "some"])
def test_a_document_comes_back_equal(kind: DocumentKind, state: ControlState) -> None:
    assert read_document(kind, write_document(kind, state, Sealer(MASTER)), MASTER, "it") == state


def test_a_document_shows_no_secret() -> None:
    state = some_state()
    data = write_document(DocumentKind.EXPORT, state, Sealer(MASTER))
    (tenant,) = state.table.tenants.values()
    assert tenant.secret.hex().encode() not in data
    assert b"acme" in data


def test_layout_may_change_where_content_does_not() -> None:
    state = some_state()
    pretty = json.dumps(json.loads(write_document(DocumentKind.EXPORT, state, Sealer(MASTER))), indent=4).encode()
    assert read_document(DocumentKind.EXPORT, pretty, MASTER, "it") == state


def changed(**changes: Any) -> bytes:
    """A document with other fields, its MAC left as it was."""
    document = json.loads(write_document(DocumentKind.EXPORT, some_state(), Sealer(MASTER)))
    return json.dumps({**document, **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        changed(records={}),
        changed(head=None),
        changed(kind="snapshot"),
        changed(extra=1),
        changed(mac="0" * 64),
        changed(mac=""),
        changed(mac="\ud800"),
        changed(format="another"),
    ],
)
def test_any_change_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="MAC of it does not fit"):
        read_document(DocumentKind.EXPORT, data, MASTER, "it")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", changed(mac=3), b'{"schema":true}'])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        read_document(DocumentKind.EXPORT, data, MASTER, "it")


def test_numbers_that_json_has_not_are_refused() -> None:
    data = changed(extra=0.5).replace(b"0.5", b"1e999")
    with pytest.raises(CorruptDataError, match="values that no export has"):
        read_document(DocumentKind.EXPORT, data, MASTER, "it")


@pytest.mark.parametrize(("made", "read"), [("snapshot", "export"), ("export", "snapshot")])
def test_one_kind_is_not_taken_for_the_other(made: str, read: str) -> None:
    data = write_document(DocumentKind(made), some_state(), Sealer(MASTER))
    with pytest.raises(CorruptDataError, match=f"no {read}"):
        read_document(DocumentKind(read), data, MASTER, "it")


def test_another_master_key_is_named() -> None:
    data = write_document(DocumentKind.EXPORT, some_state(), Sealer(MASTER))
    with pytest.raises(PreconditionError, match=f"{MASTER.key_id}.*{OTHER_MASTER.key_id}"):
        read_document(DocumentKind.EXPORT, data, OTHER_MASTER, "it")


def test_pretending_the_right_master_key_does_not_help() -> None:
    document = json.loads(write_document(DocumentKind.EXPORT, some_state(), Sealer(OTHER_MASTER)))
    data = json.dumps({**document, "master_key_id": MASTER.key_id}).encode()
    with pytest.raises(CorruptDataError, match="MAC"):
        read_document(DocumentKind.EXPORT, data, MASTER, "it")


@pytest.mark.parametrize("schema", [0, 5, 99, -1])
def test_another_schema_is_named(schema: int) -> None:
    with pytest.raises(VersionError, match=f"it has version {schema}, this build speaks version {CONTROL_SCHEMA}"):
        read_document(DocumentKind.EXPORT, changed(schema=schema), MASTER, "it")


def test_a_schema_that_was_changed_is_no_older_document() -> None:
    with pytest.raises(CorruptDataError, match="MAC"):
        read_document(DocumentKind.EXPORT, changed(schema=1), MASTER, "it")


@pytest.mark.parametrize("schema", [1, 2, 3])
@pytest.mark.parametrize("kind", list(DocumentKind))
def test_a_document_of_an_earlier_build_is_read_with_the_usual_quotas_and_without_marks(
    kind: DocumentKind, schema: int
) -> None:
    state = some_state()
    assert read_document(kind, old_document(kind, state, schema), MASTER, "it").table == state.table
