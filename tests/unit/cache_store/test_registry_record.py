"""Records of workers: what is not one is refused as a whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cache_store.index import Incarnation
from cache_store.registry import WorkerId
from cache_store.registry_record import UNREADABLE_VERSION, read_record, write_record
from tests.support.worker_records import worker_record

RECORD = worker_record("w0", incarnation="1" * 32)


def test_a_record_survives() -> None:
    assert read_record(RECORD.worker_id, RECORD.incarnation, write_record(RECORD)) == RECORD


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"null", b"{}", b'{"protocol_version": true}', b'{"protocol_version": 1}', b"[" * 100_000],
)
def test_what_is_no_record_is_unreadable(data: bytes) -> None:
    assert read_record(RECORD.worker_id, RECORD.incarnation, data).protocol_version == UNREADABLE_VERSION


FIELDS = sorted(json.loads(write_record(RECORD)).keys() - {"protocol_version"})
TEXTS = {"address", "model", "tokenizer_digest"}
WRONG_VALUES = [None, -1, [None], {"a": 1}, float("nan")]


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in FIELDS for value in WRONG_VALUES]
    + [(field, "~") for field in FIELDS if field not in TEXTS],
)
def test_a_field_of_another_type_makes_it_unreadable(field: str, value: object) -> None:
    data = json.dumps(json.loads(write_record(RECORD)) | {field: value}).encode()
    assert read_record(RECORD.worker_id, RECORD.incarnation, data).protocol_version == UNREADABLE_VERSION


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
