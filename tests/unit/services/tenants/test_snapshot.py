"""The snapshot file alone; what it repairs is in tests/integration/test_control_sync.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_store.errors import CorruptDataError, PreconditionError, VersionError
from services.tenants.document import DocumentKind
from services.tenants.model import new_tenant
from services.tenants.snapshot import SnapshotFile
from services.tenants.state import EMPTY_STATE, ControlState, Head
from services.tenants.table import add_tenant
from tests.support.control import MASTER, OTHER_MASTER
from tests.support.old_control_schemas import old_document

FIRST = ControlState(Head("s", 1, "w", MASTER.key_id), add_tenant(EMPTY_STATE.table, new_tenant("acme", 1.0)))
SECOND = ControlState(Head("s", 2, "w", MASTER.key_id), add_tenant(FIRST.table, new_tenant("globex", 1.0)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "control.json"


def test_without_a_file_nothing_is_known(path: Path) -> None:
    assert SnapshotFile(path, MASTER).load() == EMPTY_STATE


def test_what_was_saved_last_is_loaded_by_the_next_process(path: Path) -> None:
    snapshot = SnapshotFile(path, MASTER)
    snapshot.save(FIRST)
    snapshot.save(SECOND)
    assert SnapshotFile(path, MASTER).load() == SECOND


def test_file_and_folder_are_private(path: Path) -> None:
    SnapshotFile(path, MASTER).save(FIRST)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_save_that_comes_late_does_not_take_a_newer_one_back(path: Path) -> None:
    snapshot = SnapshotFile(path, MASTER)
    snapshot.save(SECOND)
    snapshot.save(FIRST)
    assert snapshot.load() == SECOND


def test_a_failed_save_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = SnapshotFile(path, MASTER)
    snapshot.save(FIRST)

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        snapshot.save(SECOND)
    monkeypatch.undo()
    assert snapshot.load() == FIRST
    assert list(path.parent.iterdir()) == [path]
    snapshot.save(SECOND)
    assert snapshot.load() == SECOND


@pytest.mark.parametrize("content", [b"", b"{}", b"half a docum"])
def test_a_damaged_file_is_refused_with_what_to_do(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match=f"{path}.*move the file away"):
        SnapshotFile(path, MASTER).load()


def test_a_file_of_another_master_key_is_refused_with_what_to_do(path: Path) -> None:
    SnapshotFile(path, MASTER).save(FIRST)
    with pytest.raises(PreconditionError, match=f"{path}.*{MASTER.key_id}.*move the file away"):
        SnapshotFile(path, OTHER_MASTER).load()


def test_a_file_of_another_schema_is_refused_by_name(path: Path) -> None:
    SnapshotFile(path, MASTER).save(FIRST)
    path.write_bytes(path.read_bytes().replace(b'"schema":4}', b'"schema":5}'))
    with pytest.raises(VersionError, match=f"{path} has version 5"):
        SnapshotFile(path, MASTER).load()


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_a_snapshot_of_an_earlier_build_is_read_with_the_usual_quotas_and_without_marks(
    path: Path, schema: int
) -> None:
    path.parent.mkdir()
    path.write_bytes(old_document(DocumentKind.SNAPSHOT, FIRST, schema))
    assert SnapshotFile(path, MASTER).load().table == FIRST.table


def test_a_snapshot_moves_under_another_master_key(path: Path) -> None:
    SnapshotFile(path, MASTER).save(FIRST)
    SnapshotFile(path, OTHER_MASTER).save(SnapshotFile(path, MASTER).load())
    assert SnapshotFile(path, OTHER_MASTER).load().table == FIRST.table
