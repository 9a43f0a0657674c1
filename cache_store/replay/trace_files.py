"""Opens trace files, plain or .zst, and finds out by their first line which reader they need.

Knows formats by name only; each has a module of its own. A file that cannot be read is refused with its line number.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import zstandard

from cache_store.errors import InvalidRequestError
from cache_store.replay import azure, kv_cache_tester, mooncake
from cache_store.replay.lines import Line
from cache_store.replay.schedule import SessionSchedule
from cache_store.replay.trace import Trace

ZSTD_WINDOW_BYTES = 1 << 27
"""Largest window of the public archives."""


class TraceFormat(StrEnum):
    """Formats that can be read."""

    MOONCAKE = "mooncake"
    KV_CACHE_TESTER = "kv-cache-tester"
    AZURE = "azure"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a file does not say."""

    block_tokens: int = 512
    """Tokens per block: the trace's own blocks are grouped to it. 0: Mooncake's as they are, others by 512."""
    schedule: SessionSchedule = field(default_factory=SessionSchedule)
    """When sessions start where a trace has time within its sessions only."""


def read_trace(path: Path, options: ReadOptions) -> Trace:
    """Reads a whole file. Raises OSError where it cannot be opened, InvalidRequestError where it is no trace."""
    with _lines(path) as lines:
        first = next(lines, None)
        if first is None:
            raise InvalidRequestError("trace", f"{path}: the file is empty")
        block_tokens = options.block_tokens or mooncake.HASH_TOKENS
        match _format_of(first):
            case TraceFormat.MOONCAKE:
                return mooncake.read(first, lines, options.block_tokens or mooncake.hash_tokens(first))
            case TraceFormat.KV_CACHE_TESTER:
                return kv_cache_tester.read(
                    first, lines, options.block_tokens or mooncake.HASH_TOKENS, options.schedule
                )
            case TraceFormat.AZURE:
                return azure.read(lines, block_tokens)


def _format_of(first: Line) -> TraceFormat:
    if first.text.strip() == azure.HEADER:
        return TraceFormat.AZURE
    fields = first.json_object() if first.text.lstrip().startswith("{") else {}
    if {"timestamp", "hash_ids"} <= fields.keys():
        return TraceFormat.MOONCAKE
    if {"block_size", "requests"} <= fields.keys():
        return TraceFormat.KV_CACHE_TESTER
    raise first.error(
        "unknown format; known are Mooncake JSONL (timestamp, hash_ids), kv-cache-tester JSONL (block_size, requests) "
        f"and Azure CSV ({azure.HEADER})"
    )


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[Line]]:
    with path.open("rb") as file:
        if path.suffix == ".zst":
            decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
            unpacked = io.BufferedReader(decompressor.stream_reader(file, read_across_frames=True), 1 << 20)
            yield _numbered(path, io.TextIOWrapper(unpacked, encoding="utf-8"))
        else:
            yield _numbered(path, io.TextIOWrapper(file, encoding="utf-8"))


def _numbered(path: Path, text: io.TextIOWrapper) -> Iterator[Line]:
    number = 0
    try:
        for number, line in enumerate(text, start=1):
            if line.strip():
                yield Line(str(path), number, line)
    except UnicodeDecodeError as error:
        raise InvalidRequestError("trace", f"{path}: line {number + 1} or soon after is no UTF-8 text") from error
    except zstandard.ZstdError as error:
        raise InvalidRequestError("trace", f"{path}: cannot be decompressed after line {number}: {error}") from error
