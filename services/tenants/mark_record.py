"""Purge marks of a tenant as part of its record."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cache_store.domain import ScopeKind, ScopeName
from cache_store.errors import CorruptDataError
from cache_store.fence import Mark, Scope
from services.tenants.fields import Fields, JsonObject


def mark_fields(marks: Mapping[Scope, Mark]) -> JsonObject:
    """The part of a record that tells what was purged: by kind, by name."""
    return {
        kind.value: {
            scope.name: {"number": mark.number, "value": mark.value}
            for scope, mark in marks.items()
            if scope.kind is kind
        }
        for kind in ScopeKind
    }


def marks_of(fields: Fields) -> Mapping[Scope, Mark]:
    """Inverse of `mark_fields`. Raises CorruptDataError."""
    marks: dict[Scope, Mark] = {}
    for kind in ScopeKind:
        found = fields.fields(kind.value)
        for name in found.values:
            marks[Scope(kind, ScopeName(name))] = _mark(found.fields(name))
    return MappingProxyType(marks)


def _mark(fields: Fields) -> Mark:
    number = fields.integer("number")
    if number < 1:
        raise CorruptDataError(f"{fields.what}: number is {number}; a purge that happened has 1 or more")
    return Mark(number, fields.text("value"))
