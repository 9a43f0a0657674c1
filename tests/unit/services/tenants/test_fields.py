"""Reading JSON from outside: every fault is named."""

from __future__ import annotations

import pytest

from cache_store.errors import CorruptDataError
from services.tenants.fields import Fields, parse_object, to_json

RECORD = Fields({"text": "a", "number": 1.5, "integer": 3, "flag": True, "data": "AAE=", "none": None, "o": {}}, "it")


def test_fields_of_the_right_type() -> None:
    assert RECORD.text("text") == "a"
    assert RECORD.number("number") == 1.5
    assert RECORD.number("integer") == 3.0
    assert RECORD.integer("integer") == 3
    assert RECORD.integer_or_none("integer") == 3
    assert RECORD.integer_or_none("none") is None
    assert RECORD.flag("flag") is True
    assert RECORD.data("data") == b"\0\1"
    assert RECORD.fields("o").values == {}


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        ("text", "integer"),
        ("integer", "flag"),
        ("integer", "number"),
        ("integer_or_none", "flag"),
        ("integer_or_none", "absent"),
        ("number", "flag"),
        ("number", "text"),
        ("flag", "integer"),
        ("data", "integer"),
        ("data", "text"),
        ("fields", "text"),
        ("text", "none"),
        ("text", "absent"),
    ],
)
def test_a_wrong_or_missing_field_is_named(reader: str, name: str) -> None:
    with pytest.raises(CorruptDataError, match=f"it: field '{name}'"):
        getattr(RECORD, reader)(name)


@pytest.mark.parametrize("text", ["", "{", "nul", b"\xff", "[" * 100_000, '{"a":' * 100_000, "9" * 5_000])
def test_what_is_no_json_is_said(text: str | bytes) -> None:
    with pytest.raises(CorruptDataError, match="it is no JSON"):
        parse_object(text, "it")


@pytest.mark.parametrize("text", ["null", "[]", "3", '"a"'])
def test_what_is_no_object_is_said(text: str) -> None:
    with pytest.raises(CorruptDataError, match="no object"):
        parse_object(text, "it")


def test_one_value_has_one_text() -> None:
    assert to_json({"b": 1, "a": "ü"}) == to_json({"a": "ü", "b": 1}) == '{"a":"\\u00fc","b":1}'
