"""Where the master key comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from services.cluster.data_folder import DataFolder
from services.cluster.secrets import master_key_source

KEY = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path)
    made.prepare()
    return made


def test_a_key_is_made_once_in_a_private_file(folder: DataFolder) -> None:
    first = master_key_source(folder, {})
    assert master_key_source(folder, {}).cluster_key == first.cluster_key
    assert first.variables == {"STEMCACHE_MASTER_KEY_FILE": str(folder.master_key)}
    assert folder.master_key.stat().st_mode & 0o077 == 0


def test_the_environment_goes_first(folder: DataFolder, tmp_path: Path) -> None:
    by_value = master_key_source(folder, {"STEMCACHE_MASTER_KEY": KEY})
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    by_file = master_key_source(folder, {"STEMCACHE_MASTER_KEY_FILE": str(file)})
    assert by_value.cluster_key == by_file.cluster_key
    assert not folder.master_key.exists()
    assert KEY not in repr(by_value)


def test_a_named_file_is_never_made(folder: DataFolder, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        master_key_source(folder, {"STEMCACHE_MASTER_KEY_FILE": str(tmp_path / "absent")})


def test_two_sources_are_refused(folder: DataFolder) -> None:
    with pytest.raises(InvalidRequestError, match="unset one"):
        master_key_source(folder, {"STEMCACHE_MASTER_KEY": KEY, "STEMCACHE_MASTER_KEY_FILE": "/x"})
