"""The folder of one start of a worker: its own, private, gone at its end, and cleared of what crashes left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache_store.errors import PreconditionError
from cache_store.registry import WorkerId
from worker.disk_folder import DiskFolder

WORKER = WorkerId("worker-0")


def test_each_start_has_a_folder_of_its_own(tmp_path: Path) -> None:
    first = DiskFolder.take(tmp_path, WORKER)
    first.path.mkdir()
    assert (tmp_path / WORKER).stat().st_mode & 0o077 == 0
    first.release()
    first.release()
    assert not first.path.exists()
    second = DiskFolder.take(tmp_path, WORKER)
    assert second.path != first.path
    assert second.path.parent == first.path.parent
    second.release()


def test_two_workers_share_a_folder_but_not_a_worker_id(tmp_path: Path) -> None:
    first = DiskFolder.take(tmp_path, WORKER)
    other = DiskFolder.take(tmp_path, WorkerId("worker-1"))
    first.path.mkdir()
    with pytest.raises(PreconditionError, match=r"another process keeps blocks of worker-0 .*--disk-folder"):
        DiskFolder.take(tmp_path, WORKER)
    assert first.path.exists()
    other.release()
    first.release()


def test_a_process_that_was_killed_holds_nothing_and_what_it_left_goes(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from worker.disk_folder import DiskFolder\n"
        "folder = DiskFolder.take(pathlib.Path(sys.argv[1]), 'worker-0')\n"
        "folder.path.mkdir(); (folder.path / 'block').write_bytes(b'sealed'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert [path.name for path in tmp_path.rglob("block")] == ["block"]
    folder = DiskFolder.take(tmp_path, WORKER)
    assert not list(tmp_path.rglob("block"))
    folder.release()


@pytest.mark.parametrize("name", ["thesis.txt", "0123456789abcdef"])
def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / WORKER
    theirs.mkdir(mode=0o755)
    theirs.chmod(0o755)
    (theirs / name).mkdir()
    (theirs / name / "data").write_text("precious")
    with pytest.raises(PreconditionError, match=rf"{name}.*--disk-folder"):
        DiskFolder.take(tmp_path, WORKER)
    assert (theirs / name / "data").read_text() == "precious"
    assert [path.name for path in theirs.iterdir()] == [name]
    assert theirs.stat().st_mode & 0o777 == 0o755


def test_a_link_to_a_folder_is_refused_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "start-1").mkdir(parents=True)
    (tmp_path / WORKER).symlink_to(target)
    with pytest.raises(PreconditionError, match=r"is a link.*--disk-folder"):
        DiskFolder.take(tmp_path, WORKER)
    assert [path.name for path in target.iterdir()] == ["start-1"]


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / WORKER).mkdir()
    other_user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other_user)
    with pytest.raises(PreconditionError, match=r"somebody else's.*--disk-folder"):
        DiskFolder.take(tmp_path, WORKER)


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError, match="cannot be used for blocks on disk"):
        DiskFolder.take(tmp_path / "file", WORKER)


def test_what_looks_like_a_leftover_and_is_a_file_is_not_removed(tmp_path: Path) -> None:
    kept = tmp_path / WORKER / "start-notes"
    kept.parent.mkdir()
    kept.write_text("mine")
    with pytest.raises(PreconditionError, match="start-notes is a leftover"):
        DiskFolder.take(tmp_path, WORKER)
    assert kept.read_text() == "mine"
