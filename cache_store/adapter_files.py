"""A PEFT folder with a LoRA adapter: read once, checked, and named by the digest of what of it changes outputs.

The digest covers the path, scale, shapes, type and bytes of each adapted module, and nothing else: the same weights
saved under another name or by another version are the same adapter. Weights are safetensors only. Every fault is an
InvalidRequestError on the field `folder` that says what would work. Knows no torch; routers and workers both read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache_store.domain import AdapterDigest
from cache_store.encoding import encode
from cache_store.lora_config import LoraConfig, read_lora_config, refusal

MAX_WEIGHT_BYTES = 4 << 30
MAX_CONFIG_BYTES = 1 << 20

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_HEADER_LENGTH = struct.Struct("<Q")
_NAME = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<side>[AB])\.weight")
_REASONS = (
    ("lora_embedding_", "it adapts embeddings"),
    ("lora_magnitude_vector", "DoRA also changes the magnitude of the model's weights"),
    (".bias", "its biases are trained too"),
    ("modules_to_save", "it replaces whole modules of the model"),
)
_UNKNOWN = "it is no lora_A or lora_B of a linear layer"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class AdapterTensor:
    """A matrix inside the bytes of an adapter's weights."""

    dtype: str
    """F32, F16 or BF16."""
    shape: tuple[int, int]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """One linear layer of the model: y = W x + scale * B (A x)."""

    path: str
    scale: float
    a: AdapterTensor
    """[rank, inputs]."""
    b: AdapterTensor
    """[outputs, rank]."""


@dataclass(frozen=True, slots=True)
class AdapterContent:
    """An adapter as it was read."""

    folder: Path
    modules: tuple[AdaptedModule, ...]
    """Sorted by path."""
    data: bytes = field(repr=False)
    """What the tensors lie in."""
    digest: AdapterDigest

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.stop - each.start for module in self.modules for each in (module.a, module.b))


def read_adapter(folder: Path) -> AdapterContent:
    """The adapter in a folder, whole or not at all: what is checked is what was read. Raises InvalidRequestError."""
    place = folder.expanduser()
    if not place.is_absolute():
        raise refusal(f"{folder} is a relative path; give an absolute one, since every worker reads it")
    if not place.is_dir():
        raise refusal(f"{place} is no folder; give the path of a folder with {_CONFIG} and {_WEIGHTS}")
    config = read_lora_config(_read_config(place / _CONFIG), str(place / _CONFIG))
    data = _read_weights(place)
    modules = _modules(config, _tensors(data, place / _WEIGHTS), place / _WEIGHTS)
    return AdapterContent(place, modules, data, _digest(modules, data))


def _read_config(file: Path) -> Mapping[str, object]:
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_CONFIG_BYTES)
        content = json.loads(text)
    except FileNotFoundError as error:
        raise refusal(f"{file.parent} has no {file.name}; is it a folder that PEFT's save_pretrained wrote?") from error
    except OSError as error:
        raise refusal(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise refusal(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise refusal(f"{file} holds no JSON object")
    return content


def _read_weights(folder: Path) -> bytes:
    file = folder / _WEIGHTS
    if not file.exists() and (folder / _PICKLED).exists():
        raise refusal(
            f"{folder} holds its weights as pickled {_PICKLED}, which is never loaded; save the adapter again with "
            "save_pretrained, which writes safetensors"
        )
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_WEIGHT_BYTES + 1)
    except OSError as error:
        raise refusal(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_WEIGHT_BYTES:
        raise refusal(f"{file} is larger than {MAX_WEIGHT_BYTES >> 30} GiB, the most that an adapter may have")
    return data


def _tensors(data: bytes, file: Path) -> dict[str, AdapterTensor]:
    broken = refusal(f"{file} is no whole safetensors file (a Git LFS pointer, or cut off?); download it again")
    length = _HEADER_LENGTH.unpack_from(data)[0] if len(data) >= _HEADER_LENGTH.size else len(data)
    base = _HEADER_LENGTH.size + length
    if base > len(data):
        raise broken
    try:
        header = json.loads(data[_HEADER_LENGTH.size : base])
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(name, entry, base, len(data), file) for name, entry in entries.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise broken from error


def _tensor(name: str, entry: Mapping[str, object], base: int, size: int, file: Path) -> AdapterTensor:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _ELEMENT_BYTES:
        raise refusal(f"{file}: {name} has type {dtype}; served are {', '.join(_ELEMENT_BYTES)}")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise TypeError(name)
    numbers = [*shape, *offsets]
    if not all(isinstance(each, int) and each >= 0 for each in numbers):
        raise TypeError(name)
    start, stop = base + offsets[0], base + offsets[1]
    if stop > size or stop - start != math.prod(shape) * _ELEMENT_BYTES[str(dtype)]:
        raise ValueError(name)
    if len(shape) != 2:
        raise refusal(f"{file}: {name} has {len(shape)} dimensions; LoRA on linear layers has two")
    return AdapterTensor(str(dtype), (shape[0], shape[1]), start, stop)


def _modules(config: LoraConfig, tensors: Mapping[str, AdapterTensor], file: Path) -> tuple[AdaptedModule, ...]:
    sides: dict[str, dict[str, AdapterTensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None or "modules_to_save" in name:
            reason = next((why for part, why in _REASONS if part in name), _UNKNOWN)
            raise refusal(f"{file} holds {name[:128]!r}, which is not served: {reason}")
        sides.setdefault(match["path"], {})[match["side"]] = tensor
    if not sides:
        raise refusal(f"{file} holds no tensors; the adapter changes nothing")
    return tuple(_module(path, found, config, file) for path, found in sorted(sides.items()))


def _module(path: str, sides: Mapping[str, AdapterTensor], config: LoraConfig, file: Path) -> AdaptedModule:
    if sides.keys() != {"A", "B"}:
        raise refusal(f"{file}: {path} has only one of lora_A and lora_B; the file is not whole")
    if not config.adapts(path):
        raise refusal(f"{file} holds weights of {path}, which {_CONFIG} does not target: they are not of one adapter")
    rank, a, b = config.rank_of(path), sides["A"], sides["B"]
    if a.shape[0] != rank or b.shape[1] != rank:
        raise refusal(
            f"{file}: {path} has lora_A {a.shape} and lora_B {b.shape} where {_CONFIG} says rank {rank}: they are not "
            "of one adapter"
        )
    return AdaptedModule(path, config.scale_of(path), a, b)


def _digest(modules: tuple[AdaptedModule, ...], data: bytes) -> AdapterDigest:
    """Injective: what a module's bytes are follows from what is written before them."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"sc-adapter")
    view = memoryview(data)
    for module in modules:
        header = encode(module.path, module.scale.hex(), *_facts(module.a), *_facts(module.b))
        digest.update(encode(header))
        for tensor in (module.a, module.b):
            digest.update(view[tensor.start : tensor.stop])
    return AdapterDigest(digest.digest())


def _facts(tensor: AdapterTensor) -> tuple[str, int, int]:
    return (tensor.dtype, *tensor.shape)
