"""The name of a tokenizer: equal for equal files, different for any difference in bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_store.errors import PreconditionError
from cache_store.tokenizer_files import tokenizer_digest


def test_same_files_same_name_whatever_the_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("{}")
    (tmp_path / "b" / "model.safetensors").write_text("weights do not matter")
    assert tokenizer_digest(tmp_path / "a") == tokenizer_digest(tmp_path / "b")


def test_one_byte_changes_the_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ }")
    assert tokenizer_digest(tmp_path) != before


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="tokenizer"):
        tokenizer_digest(tmp_path)
