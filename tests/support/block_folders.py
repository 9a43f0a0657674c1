"""Folders of blocks on disk, of a few names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_store.block_files import BlockFiles
from cache_store.block_name import BlockName
from tests.support.block_names import make_name

SIZE = 256
"""Of a block."""
ONE, TWO, OTHER = make_name(number=1), make_name(number=2), make_name("other", number=1)


def block(number: int, size: int = SIZE) -> bytes:
    return bytes([number % 256]) * size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blocks"


@pytest.fixture
def files(folder: Path) -> Iterator[BlockFiles]:
    files = BlockFiles(folder, SIZE, 8)
    yield files
    files.close()
    assert not folder.exists()


def read(files: BlockFiles, name: BlockName, size: int = SIZE) -> bytes:
    target = bytearray(size)
    files.read_into(name, target)
    return bytes(target)


def stored(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def only_file(folder: Path) -> Path:
    (path,) = stored(folder)
    return path
