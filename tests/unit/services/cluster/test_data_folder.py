"""The folder of a system, its lock, its secrets and what it tells other commands."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cache_store.errors import PreconditionError
from services.cluster.data_folder import DataFolder
from services.cluster.up_state import STATE_VERSION, UpState, read_state, remove_state, write_state

STATE = UpState(STATE_VERSION, os.getpid(), "127.0.0.1:1", "127.0.0.1:2", "m", 5.0)


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path / "data")
    made.prepare()
    return made


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_private(folder: DataFolder) -> None:
    assert _mode(folder.path) == 0o700


def test_an_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError, match="--data-dir"):
        DataFolder(tmp_path / "file" / "data").prepare()


def test_the_token_is_made_once_and_private(folder: DataFolder) -> None:
    token = folder.load_or_make_admin_token()
    assert len(token) >= 40
    assert folder.load_or_make_admin_token() == token
    assert _mode(folder.admin_token) == 0o600


def test_a_token_that_others_can_read_is_refused(folder: DataFolder) -> None:
    folder.load_or_make_admin_token()
    folder.admin_token.chmod(0o644)
    with pytest.raises(PreconditionError, match="chmod 600"):
        folder.load_or_make_admin_token()


def test_a_second_system_is_refused_while_the_first_runs(folder: DataFolder) -> None:
    with folder.locked():
        assert folder.is_locked()
        with pytest.raises(PreconditionError, match=rf"already runs on .*process {os.getpid()}"), folder.locked():
            pass
    assert not folder.is_locked()
    with folder.locked():
        pass


def test_the_state_is_read_back(folder: DataFolder) -> None:
    with folder.locked():
        write_state(folder, STATE)
        assert read_state(folder) == STATE
        assert _mode(folder.state) == 0o600


def test_a_state_without_its_system_is_a_leftover(folder: DataFolder) -> None:
    write_state(folder, STATE)
    with pytest.raises(PreconditionError, match=r"no stemcache runs on .*stemcache up"):
        read_state(folder)


def test_a_starting_system_has_no_state_yet(folder: DataFolder) -> None:
    with folder.locked():
        remove_state(folder)
        with pytest.raises(PreconditionError, match="starting or stopping"):
            read_state(folder)


@pytest.mark.parametrize("text", ["", "[]", '{"version": 999}', '{"version": 1}'])
def test_an_unreadable_state_is_refused(folder: DataFolder, text: str) -> None:
    with folder.locked():
        folder.state.write_text(text)
        with pytest.raises(PreconditionError, match="restart stemcache up"):
            read_state(folder)
