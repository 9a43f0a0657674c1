"""Typed reading of JSON that came from outside: every fault is a CorruptDataError that names place and field."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass

from cache_store.errors import CorruptDataError

JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Fields:
    """An object and where it was found."""

    values: JsonObject
    what: str

    def text(self, name: str) -> str:
        """A string."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self._fault(name, "a string", value)
        return value

    def integer(self, name: str) -> int:
        """An integer."""
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._fault(name, "an integer", value)
        return value

    def integer_or_none(self, name: str) -> int | None:
        """An integer, or null."""
        return None if name in self.values and self.values[name] is None else self.integer(name)

    def number(self, name: str) -> float:
        """A number."""
        value = self._get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._fault(name, "a number", value)
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise self._fault(name, "true or false", value)
        return value

    def data(self, name: str) -> bytes:
        """Bytes in base64."""
        text = self.text(name)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise CorruptDataError(f"{self.what}: field {name!r} is no base64") from error

    def texts_or_none(self, name: str) -> list[str] | None:
        """A list of strings, or null."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._fault(name, "a list of strings", value)
        return value

    def fields(self, name: str) -> Fields:
        """An object inside."""
        value = self._get(name)
        if not isinstance(value, dict):
            raise self._fault(name, "an object", value)
        return Fields(value, f"{self.what}, {name}")

    def _get(self, name: str) -> object:
        if name not in self.values:
            raise CorruptDataError(f"{self.what}: field {name!r} is missing")
        return self.values[name]

    def _fault(self, name: str, expected: str, found: object) -> CorruptDataError:
        return CorruptDataError(f"{self.what}: field {name!r} is {type(found).__name__}, not {expected}")


def parse_object(text: str | bytes, what: str) -> Fields:
    """The JSON object in `text`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are not UTF-8
        raise CorruptDataError(f"{what} is no JSON") from error
    if not isinstance(value, dict):
        raise CorruptDataError(f"{what} is JSON, but no object")
    return Fields(value, what)


def to_json(value: JsonObject) -> str:
    """One text per value: sorted names, no spaces, ASCII only."""
    return value_to_json(value)


def value_to_json(value: object) -> str:
    """As `to_json`, of any value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def object_of_texts(texts: Mapping[str, str]) -> str:
    """The object whose values stand in `texts`, as `to_json` would write it."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in sorted(texts.items())) + "}"


def to_base64(data: bytes) -> str:
    """Standard alphabet."""
    return base64.b64encode(data).decode("ascii")
