"""What safetensors files say they hold: names, element types and shapes, without the data.

Trusts no header: sizes are bounded, and what is no header is named.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import InvalidRequestError

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000
_FLOAT_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16}
_OTHER_BITS = {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8}
_OTHER_BITS |= {"I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64, "F4": 4}


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of a file."""

    name: str
    num_elements: int
    bits: int
    """Of an element in the file."""
    is_float: bool
    """Of 16 bits or more: computed with in whatever type the model is loaded in."""


def tensor_headers(folder: Path) -> tuple[TensorHeader, ...]:
    """Of all safetensors files of a folder; empty where there are none. Raises InvalidRequestError."""
    return tuple(header for file in sorted(folder.glob("*.safetensors")) for header in _headers(file))


def _headers(file: Path) -> Iterator[TensorHeader]:
    for name, entry in _read(file).items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(entry["dtype"]), [int(each) for each in entry["shape"]]
        except (TypeError, KeyError, ValueError) as error:
            raise _refusal(file) from error
        is_float = dtype in _FLOAT_BITS
        bits = _FLOAT_BITS.get(dtype) or _OTHER_BITS.get(dtype)
        if bits is None or min(shape, default=1) < 0:
            raise InvalidRequestError("model", f"{file}: {name} has the unknown type {dtype} of shape {shape}")
        yield TensorHeader(name, math.prod(shape), bits, is_float)


def _read(file: Path) -> dict[str, dict[str, list[int]]]:
    with file.open("rb") as stream:
        head = stream.read(_LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _MAX_HEADER_BYTES + 1
        text = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(file) from error
    if not isinstance(content, dict):
        raise _refusal(file)
    return content


def _refusal(file: Path) -> InvalidRequestError:
    return InvalidRequestError(
        "model",
        f"{file} is no safetensors file (a Git LFS pointer, or cut off?); give config.json alone, or get it again",
    )
