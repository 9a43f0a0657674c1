"""Digests name content, and are computed again exactly when a file changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.model_files.digests import weights_digest
from worker.model_files.folder import ModelFolder


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        (path / name).write_bytes(b"first content")
    return ModelFolder(path, {}, {}, (path / "model.safetensors",), ())


def replace_unnoticed(file: Path, content: bytes) -> None:
    """Other bytes of the same length under the same time of change."""
    stat = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_other_content_gives_another_digest(folder: ModelFolder, tmp_path: Path, name: str) -> None:
    before = weights_digest(folder, tmp_path)
    (folder.path / name).write_bytes(b"other content")
    os.utime(folder.path / name, ns=(1, 1))
    assert weights_digest(folder, tmp_path) != before


def test_the_digest_does_not_depend_on_the_path(folder: ModelFolder, tmp_path: Path) -> None:
    before = weights_digest(folder, tmp_path)
    moved = folder.path.rename(tmp_path / "moved")
    assert weights_digest(ModelFolder(moved, {}, {}, (moved / "model.safetensors",), ()), tmp_path) == before


def test_a_file_of_the_same_path_size_and_time_is_not_read_again(folder: ModelFolder, tmp_path: Path) -> None:
    before = weights_digest(folder, tmp_path)
    replace_unnoticed(folder.weight_files[0], b"other content")
    assert weights_digest(folder, tmp_path) == before
    assert weights_digest(folder, tmp_path / "another cache") != before


def test_a_damaged_record_costs_a_new_hash(folder: ModelFolder, tmp_path: Path) -> None:
    before = weights_digest(folder, tmp_path)
    records = list((tmp_path / "digests").iterdir())
    assert len(records) == 2
    for record in records:
        record.write_text('{"key": ')
    assert weights_digest(folder, tmp_path) == before


def test_a_cache_folder_that_cannot_be_written_is_done_without(folder: ModelFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert weights_digest(folder, tmp_path / "file" / "cache") == weights_digest(folder, tmp_path)
