"""Injective encoding of tuples: two different tuples never give the same bytes.

Each field is one type byte, its length as 8 little-endian bytes, and its payload. Strings are UTF-8 as given, without
normalisation: strings that differ in code points are different.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cache_store.errors import CorruptDataError

Field = str | bytes | int | None

_HEADER = struct.Struct("<cQ")


def encode(*fields: Field) -> bytes:
    """Encodes `fields`; integers are signed and of any size."""
    parts: list[bytes] = []
    for field in fields:
        if isinstance(field, str):
            kind, payload = b"s", field.encode("utf-8", "surrogatepass")
        elif isinstance(field, bytes):
            kind, payload = b"b", field
        elif field is None:
            kind, payload = b"n", b""
        else:
            kind, payload = b"i", int(field).to_bytes((int(field).bit_length() + 8) // 8, "little", signed=True)
        parts.append(_HEADER.pack(kind, len(payload)))
        parts.append(payload)
    return b"".join(parts)


def decode(data: bytes) -> tuple[Field, ...]:
    """Inverse of `encode`. Raises CorruptDataError where `data` is not exactly what `encode` gives."""
    fields = tuple(_decode_all(data))
    if encode(*fields) != data:
        raise CorruptDataError("the encoding is not canonical")
    return fields


def _decode_all(data: bytes) -> Iterator[Field]:
    position = 0
    while position < len(data):
        if position + _HEADER.size > len(data):
            raise CorruptDataError("the encoding ends inside a header")
        kind, length = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        payload = data[position : position + length]
        if len(payload) != length:
            raise CorruptDataError("the encoding ends inside a field")
        position += length
        yield _decode_one(kind, payload)


def _decode_one(kind: bytes, payload: bytes) -> Field:
    if kind == b"n":
        return None
    if kind == b"s":
        try:
            return payload.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise CorruptDataError("a string field is not UTF-8") from error
    if kind == b"b":
        return payload
    if kind == b"i":
        return int.from_bytes(payload, "little", signed=True)
    raise CorruptDataError(f"unknown field type {kind!r}")
