"""Records of workers: what is not one is refused as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from cache_store.adapters import MAX_ADAPTERS, AdapterReport
from cache_store.domain import AdapterDigest, FormatDigest, TenantId
from cache_store.index import Incarnation
from cache_store.registry import MAX_TENANTS_TOLD, PROTOCOL_VERSION, WorkerId
from cache_store.registry_record import UNREADABLE_VERSION, read_record, write_record
from cache_store.tier_kind import TierKind
from cache_store.usage import AuditCounts, Pressure, TenantUse, TierLoad, WindowLoad
from tests.support.worker_records import IDLE, worker_record

USE = TenantUse(
    tenant=TenantId("acme"),
    guaranteed_blocks=1,
    max_blocks=2,
    used_blocks=3,
    held_blocks=4,
    lent_blocks=5,
    evicted_blocks=6,
    pinned_blocks=7,
    waiting_requests=8,
)
TIER = TierLoad(TierKind.HOST, 9, 8, 7, 6, 5, 4, 3, 0.25)
ADAPTERS = (
    AdapterReport("a", AdapterDigest(b"d" * 32), FormatDigest(b"f" * 16), ""),
    AdapterReport("b", AdapterDigest(b"e" * 32), FormatDigest(b""), "its folder is gone"),
)
WINDOW = WindowLoad(128, 9, 20, 7, 11)
LOAD = replace(IDLE, pressure=Pressure(1, 2, 3, 4, 5, 6, 7), tenants=(USE,), tiers=(TIER,), audit=AuditCounts(1, 2, 3))
LOAD = replace(LOAD, windows=(WINDOW,))
RECORD = replace(worker_record("w0", incarnation="1" * 32, load=LOAD), quota_generation=9, adapters=ADAPTERS)
RECORD = replace(RECORD, kv_bytes_per_sequence=5, kv_pool_bytes=6)


def test_a_record_survives() -> None:
    assert read_record(RECORD.worker_id, RECORD.incarnation, write_record(RECORD)) == RECORD


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"null", b"{}", b'{"protocol_version": true}', b'{"protocol_version": 5}', b"[" * 100_000],
)
def test_what_is_no_record_is_unreadable(data: bytes) -> None:
    assert read_record(RECORD.worker_id, RECORD.incarnation, data).protocol_version == UNREADABLE_VERSION


FIELDS = sorted(json.loads(write_record(RECORD)).keys() - {"protocol_version"})
TEXTS = {"address", "model", "tokenizer_digest", "metrics_address"}
WRONG_VALUES = [None, -1, [None], {"a": 1}, float("nan")]


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in FIELDS for value in WRONG_VALUES]
    + [(field, "~") for field in FIELDS if field not in TEXTS],
)
def test_a_field_of_another_type_makes_it_unreadable(field: str, value: object) -> None:
    data = json.dumps(json.loads(write_record(RECORD)) | {field: value}).encode()
    assert read_record(RECORD.worker_id, RECORD.incarnation, data).protocol_version == UNREADABLE_VERSION


@pytest.mark.parametrize("value", [None, -1, 1.5, True, "1", [1]])
@pytest.mark.parametrize("field", [each.name for each in fields(Pressure)])
def test_a_pressure_that_is_no_count_makes_it_unreadable(field: str, value: object) -> None:
    assert version_with(lambda load: load["pressure"].update({field: value})) == UNREADABLE_VERSION


@pytest.mark.parametrize("value", [None, -1, 1.5, True, "1", [1], {}])
@pytest.mark.parametrize("field", [each.name for each in fields(TenantUse)][1:])
def test_a_use_that_is_no_count_makes_it_unreadable(field: str, value: object) -> None:
    assert version_with(lambda load: load["tenants"][0].update({field: value})) == UNREADABLE_VERSION


@pytest.mark.parametrize("name", ["", "a" * 65, "a\nb", "\x1b[2J", "é", None, 3])
def test_a_tenant_that_could_spoil_a_terminal_makes_it_unreadable(name: object) -> None:
    assert version_with(lambda load: load["tenants"][0].update(tenant=name)) == UNREADABLE_VERSION


def test_as_many_tenants_as_may_be_told_are_written_and_more_are_not_read() -> None:
    many = tuple(replace(USE, tenant=TenantId(f"t{at}")) for at in range(MAX_TENANTS_TOLD + 1))
    record = replace(RECORD, load=replace(LOAD, tenants=many))
    read = read_record(RECORD.worker_id, RECORD.incarnation, write_record(record))
    assert read.load.tenants == many[:MAX_TENANTS_TOLD]
    assert version_with(lambda load: load.update(tenants=load["tenants"] * (MAX_TENANTS_TOLD + 1))) == 0
    assert version_with(lambda load: load.update(tenants=load["tenants"] * MAX_TENANTS_TOLD)) == PROTOCOL_VERSION


def test_a_record_from_before_there_was_pressure_is_refused_by_its_version() -> None:
    values = json.loads(write_record(RECORD)) | {"protocol_version": 1}
    del values["load"]["pressure"], values["load"]["tenants"], values["quota_generation"]
    read = read_record(RECORD.worker_id, RECORD.incarnation, json.dumps(values).encode())
    assert (read.protocol_version, read.worker_id, read.load.used_blocks) == (1, RECORD.worker_id, 0)


def version_with(change: Callable[[Any], Any]) -> int:
    """Protocol version that is read from the record with another load."""
    values = json.loads(write_record(RECORD))
    change(values["load"])
    return read_record(RECORD.worker_id, RECORD.incarnation, json.dumps(values).encode()).protocol_version


@pytest.mark.parametrize("rate", ["NaN", "Infinity", "-1.0", "true"])
def test_a_rate_that_would_poison_routing_makes_it_unreadable(rate: str) -> None:
    text = write_record(RECORD).decode()
    assert '"prefill_tokens_per_s":1000.0' in text
    data = text.replace('"prefill_tokens_per_s":1000.0', f'"prefill_tokens_per_s":{rate}').encode()
    assert read_record(RECORD.worker_id, RECORD.incarnation, data).protocol_version == UNREADABLE_VERSION


def test_a_record_under_another_name_is_unreadable() -> None:
    data = write_record(replace(RECORD, worker_id=WorkerId("other")))
    assert read_record(RECORD.worker_id, RECORD.incarnation, data).protocol_version == UNREADABLE_VERSION
    assert read_record(WorkerId("other"), Incarnation("2" * 32), data).protocol_version == UNREADABLE_VERSION


@pytest.mark.parametrize(
    "change", [{"name": "a\x1b[2J"}, {"error": "a\nb"}, {"digest": "xy"}, {"kv_format": None}, {"name": 3}]
)
def test_a_report_of_an_adapter_that_is_none_makes_the_record_unreadable(change: dict[str, object]) -> None:
    values = json.loads(write_record(RECORD))
    values["adapters"][0] |= change
    assert read_record(RECORD.worker_id, RECORD.incarnation, json.dumps(values).encode()).protocol_version == 0


def test_no_more_adapters_are_told_than_there_may_be() -> None:
    record = replace(RECORD, adapters=ADAPTERS * MAX_ADAPTERS)
    assert read_record(RECORD.worker_id, RECORD.incarnation, write_record(record)).adapters == record.adapters[:64]
    values = json.loads(write_record(RECORD)) | {"adapters": json.loads(write_record(record))["adapters"] * 2}
    assert read_record(RECORD.worker_id, RECORD.incarnation, json.dumps(values).encode()).protocol_version == 0
