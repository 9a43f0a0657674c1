"""Files that were cut, changed, exchanged, lost or left behind are misses, and harm no other block."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.block_files import BlockFiles
from cache_store.errors import CorruptDataError, NotStoredError, StorageError
from tests.support.block_folders import ONE, OTHER, SIZE, TWO, block, only_file, read, stored


@pytest.mark.parametrize("removal", ["the domain", "its last block"])
def test_a_key_is_never_used_again(files: BlockFiles, folder: Path, removal: str) -> None:
    """A file that was kept aside does not open once its domain was removed, also when the domain has come back."""
    files.write(ONE, block(1))
    kept = only_file(folder).read_bytes()
    if removal == "the domain":
        files.remove_domains((ONE.root,))
        assert files.wait_swept(10)
    else:
        files.remove(ONE)
    files.write(ONE, block(2))
    assert read(files, ONE) == block(2)
    only_file(folder).write_bytes(kept)
    with pytest.raises(CorruptDataError):
        read(files, ONE)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_write_that_was_cut_at_any_byte_is_a_miss(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "blocks"
        files = BlockFiles(folder, SIZE, 8)
        files.write(ONE, block(1))
        path = only_file(folder)
        files.write(OTHER, block(2))
        (path,) = set(stored(folder)) - {path}
        os.truncate(path, data.draw(st.integers(0, path.stat().st_size - 1)))
        with pytest.raises(CorruptDataError):
            read(files, OTHER)
        with pytest.raises(NotStoredError):
            read(files, OTHER)
        assert read(files, ONE) == block(1)
        files.check_invariants()
        files.close()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_other_content_is_a_miss_and_goes(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "blocks"
        files = BlockFiles(folder, SIZE, 8)
        files.write(ONE, block(1))
        path = only_file(folder)
        good = path.read_bytes()
        changed = bytearray(good)
        index = data.draw(st.integers(0, len(good) - 1))
        changed[index] ^= data.draw(st.integers(1, 255))
        path.write_bytes(data.draw(st.sampled_from([bytes(changed), good + b"x", os.urandom(len(good)), b""])))
        with pytest.raises(CorruptDataError):
            read(files, ONE)
        assert stored(folder) == []
        files.check_invariants()
        files.close()


def test_exchanged_files_are_misses(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    files.write(TWO, block(2))
    first, second = stored(folder)
    content = first.read_bytes()
    second.rename(first)
    second.write_bytes(content)
    for name in (ONE, TWO):
        with pytest.raises(CorruptDataError, match="another one"):
            read(files, name)
    assert stored(folder) == []


def test_another_domains_file_is_a_miss(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    mine = only_file(folder)
    files.write(OTHER, block(2))
    (theirs,) = set(stored(folder)) - {mine}
    mine.write_bytes(theirs.read_bytes())
    with pytest.raises(CorruptDataError):
        read(files, ONE)
    assert read(files, OTHER) == block(2)


@pytest.mark.parametrize("kind", ["missing", "folder", "link"])
def test_what_is_no_file_any_more_is_a_miss(files: BlockFiles, folder: Path, kind: str) -> None:
    files.write(ONE, block(1))
    path = only_file(folder)
    moved = path.rename(folder.parent / "moved")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(moved)
    with pytest.raises(NotStoredError if kind == "missing" else CorruptDataError):
        read(files, ONE)
    with pytest.raises(NotStoredError):
        read(files, ONE)


def test_a_write_that_the_system_ends_halfway_leaves_nothing(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            files.write(TWO, block(2))
        with pytest.raises(StorageError, match="File too large"):
            files.write(OTHER, block(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(stored(folder)) == files.num_files == 1
    files.check_invariants()
    files.write(TWO, block(2))
    assert (read(files, ONE), read(files, TWO)) == (block(1), block(2))


def test_a_file_that_cannot_be_unlinked_keeps_its_room(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    path = only_file(folder)
    path.unlink()
    path.mkdir()
    files.remove_domains((ONE.root,))
    assert files.wait_swept(10)
    assert files.num_files == 1
    with pytest.raises(NotStoredError):
        read(files, ONE)
    files.write(ONE, block(2))
    assert read(files, ONE) == block(2)


def test_a_folder_that_is_removed_is_made_again(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    shutil.rmtree(folder)
    files.write(TWO, block(2))
    files.write(OTHER, block(3))
    with pytest.raises(NotStoredError):
        read(files, ONE)
    assert (read(files, TWO), read(files, OTHER)) == (block(2), block(3))
    assert {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")] if path.is_dir()} == {0o700}
    files.check_invariants()
    shutil.rmtree(folder)


def test_a_process_that_dies_leaves_nothing_that_opens(folder: Path, tmp_path: Path) -> None:
    """Its files lie there; the next start, in a folder of its own, knows none of them."""
    program = (
        "import os; from pathlib import Path; from tests.support.block_names import make_name;"
        "from cache_store.block_files import BlockFiles;"
        f"BlockFiles(Path({str(folder)!r}), {SIZE}, 8).write(make_name(number=1), b'x' * {SIZE}); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 9
    left = only_file(folder).read_bytes()
    files = BlockFiles(tmp_path / "next", SIZE, 8)
    with pytest.raises(NotStoredError):
        read(files, ONE)
    files.write(ONE, block(2))
    only_file(tmp_path / "next").write_bytes(left)
    with pytest.raises(CorruptDataError):
        read(files, ONE)
    files.close()
