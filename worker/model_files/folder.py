"""Checks a Hugging Face model folder before anything is loaded from it.

Knows file names and the safetensors header; knows no torch and no transformers. Every fault is an InvalidRequestError
on the field `model` that names the file and what would work. Nothing here is cached or written.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import InvalidRequestError

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_GENERATION = "generation_config.json"
_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
_TEXT_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
_HEADER_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that has everything a model needs."""

    path: Path
    """Absolute, links resolved."""
    config: Mapping[str, object]
    """Content of config.json."""
    generation_config: Mapping[str, object]
    """Content of generation_config.json; empty where there is none."""
    weight_files: tuple[Path, ...]
    """Safetensors shards, sorted by name."""
    tokenizer_files: tuple[Path, ...]
    """Whatever decides which text becomes which token ids, sorted by name."""


def check_folder(path: Path) -> ModelFolder:
    """The parts of a model folder. Raises InvalidRequestError where one is missing, unreadable or cut off."""
    folder = path.expanduser().resolve()
    if not folder.is_dir():
        raise _refusal(f"{folder} is no folder; give the path of a local Hugging Face model folder")
    config = _read_json(folder / _CONFIG)
    generation = folder / _GENERATION
    return ModelFolder(
        path=folder,
        config=config,
        generation_config=_read_json(generation) if generation.exists() else {},
        weight_files=_weight_files(folder),
        tokenizer_files=_tokenizer_files(folder),
    )


def _weight_files(folder: Path) -> tuple[Path, ...]:
    if (folder / _INDEX).exists():
        files = _indexed_files(folder)
    elif (folder / _WEIGHTS).exists():
        files = (folder / _WEIGHTS,)
    elif any((folder / name).exists() for name in _PICKLED):
        raise _refusal(
            f"{folder} holds its weights as pickled {_PICKLED[0]}, which is never loaded; "
            "save the model again with save_pretrained, which writes safetensors"
        )
    else:
        raise _refusal(f"{folder} has no weights: neither {_WEIGHTS} nor {_INDEX} is there")
    for file in files:
        _check_safetensors(file)
    return files


def _indexed_files(folder: Path) -> tuple[Path, ...]:
    weight_map = _read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _refusal(f"{folder / _INDEX} has no weight_map; download it again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise _refusal(f"{folder / _INDEX} names the shard {name!r} outside of the folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise _refusal(
            f"{folder} lacks {len(missing)} of {len(names)} shards named in {_INDEX}, first {missing[0]}; "
            "download the missing files"
        )
    return tuple(folder / name for name in names)


def _check_safetensors(file: Path) -> None:
    """Compares the file's size with what its header promises: finds interrupted downloads without reading the data."""
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEADER_LENGTH.size)
            length = _HEADER_LENGTH.unpack(head)[0] if len(head) == _HEADER_LENGTH.size else _MAX_HEADER_BYTES + 1
            header = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
            size = file.stat().st_size
    except OSError as error:
        raise _refusal(f"{file} cannot be read: {error.strerror}") from error
    expected = _promised_size(header)
    if expected is None:
        raise _refusal(f"{file} is no safetensors file (a Git LFS pointer, or cut off?); download it again")
    if size != expected:
        raise _refusal(f"{file} has {size} bytes where its header promises {expected}; download it again")


def _promised_size(header: bytes) -> int | None:
    """Size of the whole file by its header; None where the header is not one."""
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        return _HEADER_LENGTH.size + len(header) + max(ends, default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        return None


def _tokenizer_files(folder: Path) -> tuple[Path, ...]:
    if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
        options = ", ".join(" with ".join(names) for names in _TOKENIZERS)
        raise _refusal(f"{folder} has no tokenizer; one of these must be there: {options}")
    return tuple(folder / name for name in sorted(_TEXT_FILES) if (folder / name).is_file())


def _read_json(file: Path) -> dict[str, object]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _refusal(f"{file.parent} has no {file.name}; is it a Hugging Face model folder?") from error
    except OSError as error:
        raise _refusal(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _refusal(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise _refusal(f"{file} holds no JSON object")
    return content


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError("model", message)
