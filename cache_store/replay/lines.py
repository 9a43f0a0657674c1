"""A line of a trace file with its place, so that whatever is wrong with it is told with its number."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cache_store.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Line:
    """Text of one line and where it stands."""

    path: str
    number: int
    text: str

    def error(self, problem: str) -> InvalidRequestError:
        """The error that says what is wrong here."""
        return InvalidRequestError("trace", f"{self.path}:{self.number}: {problem}")

    def json_object(self) -> dict[str, object]:
        """The line as a JSON object."""
        try:
            value = json.loads(self.text)
        except json.JSONDecodeError as error:
            raise self.error(f"no JSON: {error.msg} at column {error.colno}; is the file cut short?") from error
        if not isinstance(value, dict):
            raise self.error(f"a JSON object is needed, not {type(value).__name__}")
        return value

    def number_in(self, fields: dict[str, object], name: str) -> float:
        """A field that must be a number, 0 or more."""
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.error(f"{name} must be a number of at least 0, not {_shown(value)}")
        return value

    def text_in(self, fields: dict[str, object], name: str) -> str:
        """A field that is text; empty where it is missing or null."""
        value = fields.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(f"{name} must be text, not {_shown(value)}")
        return value

    def ids_in(self, fields: dict[str, object], name: str) -> list[int]:
        """A field that must be a list of whole numbers."""
        value = fields.get(name)
        if not isinstance(value, list):
            raise self.error(f"{name} must be a list of whole numbers, not {_shown(value)}")
        if not set(map(type, value)) <= {int}:
            wrong = next(each for each in value if type(each) is not int)
            raise self.error(f"{name} must be a list of whole numbers and has {_shown(wrong)}")
        return value


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return "nothing" if value is None else text if len(text) <= 40 else f"{text[:37]}..."
