"""Values to JSON and back: frozen dataclasses of numbers, text, choices, tuples, mappings and each other.

A field that is None or an empty tuple is left out of the JSON, and one that is missing takes its default. Names that a
class does not know are passed over, so that an older reader reads what a newer writer has written. Knows no files.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from cache_store.errors import InvalidRequestError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_Read = Callable[[object, str], Any]


def to_json(value: object) -> Any:
    """What `json.dumps` takes."""
    if isinstance(value, StrEnum):
        return str(value)
    if is_dataclass(value):
        named = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {name: to_json(each) for name, each in named if each is not None and each != ()}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(each) for each in value]
    return value


def from_json(kind: type[T], value: object, where: str) -> T:
    """The value of class `kind`. Raises InvalidRequestError that names `where` and the field."""
    found = _reader(kind)(value, where)
    assert isinstance(found, kind)
    return found


@cache
def _reader(kind: Any) -> _Read:
    """Reads values of one type as annotations write it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _tuple(_reader(arguments[0]))
    if origin is Mapping:
        return _mapping(_reader(arguments[1]))
    if is_dataclass(kind):
        return _record(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _choice(kind)
    return _plain(kind)


def _plain(kind: type) -> _Read:
    def read(value: object, where: str) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise InvalidRequestError(where, f"{where} is {_shown(value)}; a value of type {kind.__name__} is needed")

    return read


def _choice(kind: type[StrEnum]) -> _Read:
    def read(value: object, where: str) -> StrEnum:
        try:
            return kind(str(value))
        except ValueError as error:
            raise InvalidRequestError(where, f"{where} is {_shown(value)}; known are {', '.join(kind)}") from error

    return read


def _union(arguments: tuple[Any, ...]) -> _Read:
    """Of None, numbers and text; or of None and one other type."""
    readers = [_reader(each) for each in arguments if each is not type(None)]
    nothing = type(None) in arguments

    def read(value: object, where: str) -> Any:
        if value is None and nothing:
            return None
        if len(readers) == 1:
            return readers[0](value, where)
        if type(value) in arguments:
            return value
        if type(value) is int and float in arguments:
            return float(value)
        raise InvalidRequestError(where, f"{where} is {_shown(value)}; a number or text is needed")

    return read


def _tuple(read_each: _Read) -> _Read:
    def read(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InvalidRequestError(where, f"{where} is {_shown(value)}; a list is needed")
        return tuple(read_each(each, where) for each in value)

    return read


def _mapping(read_each: _Read) -> _Read:
    def read(value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidRequestError(where, f"{where} is {_shown(value)}; an object is needed")
        return {key: read_each(each, f"{where}.{key}") for key, each in value.items()}

    return read


def _record(kind: Any) -> _Read:
    hints = typing.get_type_hints(kind)
    readers = {each.name: _reader(hints[each.name]) for each in fields(kind)}
    needed = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    absent: dict[str, Any] = {name: None for name in needed if type(None) in typing.get_args(hints[name])}
    absent |= {name: () for name in needed if typing.get_origin(hints[name]) is tuple}

    def read(value: object, where: str) -> Any:
        if not isinstance(value, dict):
            raise InvalidRequestError(where, f"{where} is {_shown(value)}; an object is needed")
        given = {name: readers[name](each, f"{where}.{name}") for name, each in value.items() if name in readers}
        for name in needed:
            if name not in given:
                if name not in absent:
                    raise InvalidRequestError(f"{where}.{name}", f"{where} lacks {name}: is it a file of another kind?")
                given[name] = absent[name]
        return kind(**given)

    return read


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
