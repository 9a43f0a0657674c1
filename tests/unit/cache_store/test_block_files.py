"""What is written to disk comes back as it was or not at all, and is unreadable once its domain has gone."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.block_files import BlockFiles
from cache_store.block_name import BlockName
from cache_store.block_seal import BlockSeal
from cache_store.errors import CorruptDataError, NotStoredError, PreconditionError, StorageError
from cache_store.tokens import PackedTokens
from tests.support.block_names import make_name

SIZE = 256
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


def test_blocks_come_back_under_their_names(files: BlockFiles) -> None:
    for number, name in enumerate((ONE, TWO, OTHER)):
        files.write(name, block(number))
    assert [read(files, name) for name in (ONE, TWO, OTHER)] == [block(0), block(1), block(2)]
    files.check_invariants()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_written(files: BlockFiles, kind: type) -> None:
    files.write(ONE, kind(block(7)))
    assert read(files, ONE) == block(7)


def test_a_part_of_a_pool_is_filled_in_place(files: BlockFiles) -> None:
    files.write(ONE, block(7))
    pool = bytearray(3 * SIZE)
    files.read_into(ONE, memoryview(pool)[SIZE : 2 * SIZE])
    assert pool == bytes(SIZE) + block(7) + bytes(SIZE)


def test_a_block_of_another_domain_is_not_there(files: BlockFiles) -> None:
    files.write(ONE, block(1))
    with pytest.raises(NotStoredError):
        read(files, OTHER)
    assert read(files, ONE) == block(1)


def test_colliding_digests_are_two_blocks(files: BlockFiles) -> None:
    """Names that differ in the number of their node only."""
    twin = BlockName(ONE.root, ONE.parent, ONE.digest, ONE.tokens, number=99)
    files.write(ONE, block(1))
    files.write(twin, block(2))
    assert (read(files, ONE), read(files, twin)) == (block(1), block(2))
    files.remove(twin)
    assert read(files, ONE) == block(1)


def test_what_is_removed_is_not_there(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    files.write(TWO, block(2))
    files.remove(ONE)
    files.remove(ONE)
    with pytest.raises(NotStoredError):
        read(files, ONE)
    assert read(files, TWO) == block(2)
    assert len(stored(folder)) == files.num_files == 1
    files.check_invariants()


def test_writing_again_replaces(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    files.write(ONE, block(2))
    assert read(files, ONE) == block(2)
    assert len(stored(folder)) == files.num_files == 1


def test_a_removed_domain_is_gone_and_another_stays(files: BlockFiles, folder: Path) -> None:
    for name in (ONE, TWO, OTHER):
        files.write(name, block(1))
    files.remove_domains((ONE.root,))
    for name in (ONE, TWO):
        with pytest.raises(NotStoredError):
            read(files, name)
    assert read(files, OTHER) == block(1)
    assert files.wait_swept(10)
    assert len(stored(folder)) == files.num_files == 1
    files.check_invariants()


def test_many_domains_are_removed_at_once(folder: Path) -> None:
    files = BlockFiles(folder, SIZE, 1_001)
    names = [make_name(f"tenant-{number}") for number in range(1_000)]
    for name in (*names, OTHER):
        files.write(name, block(1))
    files.remove_domains([name.root for name in (*names, ONE)])
    for name in names:
        with pytest.raises(NotStoredError):
            read(files, name)
    assert files.wait_swept(30)
    assert len(stored(folder)) == files.num_files == 1
    assert read(files, OTHER) == block(1)
    files.check_invariants()
    files.close()


def num_seals() -> int:
    gc.collect()
    return sum(type(each) is BlockSeal for each in gc.get_objects())


def test_a_key_does_not_wait_for_its_files(folder: Path) -> None:
    num_before = num_seals()
    files = BlockFiles(folder, SIZE, 1_000)
    for number in range(1_000):
        files.write(make_name(number=number), block(number))
    assert num_seals() == num_before + 1
    files.remove_domains((ONE.root,))
    assert num_seals() == num_before
    files.close()


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


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(
            BlockName,
            root=st.sampled_from([b"", b"\0", b"r" * 32]),
            parent=st.binary(max_size=40),
            digest=st.binary(max_size=17),
            tokens=st.binary(max_size=80).map(PackedTokens),
            number=st.integers(0, 2**70),
        ),
        unique=True,
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 300),
)
def test_odd_names_and_sizes(names: list[BlockName], size: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        files = BlockFiles(Path(parent) / "blocks", size, 8)
        for number, name in enumerate(names):
            files.write(name, block(number, size))
        assert [read(files, name, size) for name in names] == [block(number, size) for number in range(len(names))]
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


def test_it_takes_no_more_than_it_may(files: BlockFiles) -> None:
    names = [make_name(number=number) for number in range(9)]
    for name in names[:8]:
        files.write(name, block(1))
    with pytest.raises(StorageError, match="8 blocks"):
        files.write(names[8], block(1))
    files.check_invariants()
    files.remove(names[0])
    files.write(names[8], block(3))
    assert read(files, names[8]) == block(3)


@pytest.fixture
def may_unlink(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The disk takes its time: nothing is unlinked before it is set, or else for 50 ms."""
    event, unlink = threading.Event(), Path.unlink

    def slowly(path: Path, missing_ok: bool = False) -> None:
        event.wait(0.05)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", slowly)
    yield event
    event.set()


def fill(files: BlockFiles) -> None:
    for number in range(8):
        files.write(make_name(number=number), block(1))


@pytest.mark.usefixtures("may_unlink")
def test_who_writes_after_anothers_purge_of_a_full_disk_loses_nothing(files: BlockFiles) -> None:
    fill(files)
    files.remove_domains((ONE.root,))
    files.write(OTHER, block(2))
    assert files.num_files <= 8
    assert read(files, OTHER) == block(2)
    assert files.wait_swept(10)
    files.check_invariants()


def test_a_write_does_not_wait_for_a_disk_that_hangs(
    files: BlockFiles, may_unlink: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_store.block_files.SWEEP_TIMEOUT_S", 0.0)
    fill(files)
    files.remove_domains((ONE.root,))
    with pytest.raises(StorageError, match="8 blocks"):
        files.write(OTHER, block(2))
    may_unlink.set()
    assert files.wait_swept(10)
    files.write(OTHER, block(2))
    assert read(files, OTHER) == block(2)


def test_a_block_of_another_size_is_an_error_of_the_caller(files: BlockFiles) -> None:
    with pytest.raises(ValueError, match="256 bytes, not 255"):
        files.write(ONE, bytes(SIZE - 1))
    with pytest.raises(ValueError, match="256 bytes, not 257"):
        files.read_into(ONE, bytearray(SIZE + 1))


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


def test_others_cannot_look_into_it(files: BlockFiles, folder: Path) -> None:
    files.write(ONE, block(1))
    paths = [folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600}


def test_neither_bytes_nor_names_are_to_be_seen(files: BlockFiles, folder: Path) -> None:
    secret = os.urandom(SIZE)
    files.write(ONE, secret)
    seen = only_file(folder).read_bytes() + "".join(map(str, folder.rglob("*"))).encode()
    for part in (secret[:8], ONE.root, ONE.digest, ONE.tokens, ONE.root.hex().encode(), ONE.digest.hex().encode()):
        assert part not in seen


def test_a_folder_with_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(PreconditionError, match="not empty"):
        BlockFiles(tmp_path, SIZE, 8)
    assert (tmp_path / "precious").read_text() == "data"


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


def test_after_its_end_there_is_nothing(folder: Path) -> None:
    files = BlockFiles(folder, SIZE, 8)
    files.write(ONE, block(1))
    files.remove_domains((ONE.root,))
    files.write(TWO, block(1))
    files.close()
    files.close()
    assert not folder.exists()
    with pytest.raises(NotStoredError):
        read(files, TWO)
    with pytest.raises(StorageError, match="closed"):
        files.write(ONE, block(1))
    files.remove_domains((TWO.root,))


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


def test_what_is_expected_soon_can_be_told(files: BlockFiles) -> None:
    files.write(ONE, block(1))
    files.prefetch((ONE, TWO))
    assert read(files, ONE) == block(1)


def test_one_writes_and_removes_while_another_reads(folder: Path) -> None:
    """Whatever is read is what was written under that name; nothing else ends a read but an error of ours."""
    files = BlockFiles(folder, SIZE, 40)
    names = [make_name(tenant, number) for tenant in ("a", "b", "c") for number in range(8)]
    is_over = threading.Event()
    num_read = [0]
    failures: list[BaseException] = []

    def read_all() -> None:
        try:
            while not is_over.is_set():
                for number, name in enumerate(names):
                    try:
                        assert read(files, name) == block(number)
                        num_read[0] += 1
                    except NotStoredError:
                        pass
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read_all)
    reader.start()
    for turn in range(60):
        for number, name in enumerate(names):
            files.write(name, block(number))
            if (turn + number) % 5 == 0:
                files.remove(name)
        assert files.wait_swept(10)
        files.remove_domains((names[turn % len(names)].root,))
    is_over.set()
    reader.join(30)
    assert not reader.is_alive()
    assert not failures
    assert num_read[0]
    assert files.wait_swept(10)
    files.check_invariants()
    files.close()


def test_a_domain_is_removed_while_its_blocks_are_written(folder: Path) -> None:
    files = BlockFiles(folder, SIZE, 1_000)
    is_over = threading.Event()

    def remove_all() -> None:
        while not is_over.is_set():
            files.remove_domains((ONE.root,))
            time.sleep(0.001)  # so that writes come between, too

    remover = threading.Thread(target=remove_all)
    remover.start()
    num_kept = num_tried = 0
    while num_tried < 300 or (not num_kept and num_tried < 10_000):
        try:
            files.write(make_name(number=num_tried), block(num_tried))
            num_kept += 1
        except StorageError as error:
            assert "domain" in str(error) or "taken" in str(error)  # noqa: PT017 -- others succeed
        num_tried += 1
    is_over.set()
    remover.join(30)
    files.remove_domains((ONE.root,))
    assert files.wait_swept(10)
    assert num_kept
    assert files.num_files == 0
    assert stored(folder) == []
    files.check_invariants()
    files.close()
