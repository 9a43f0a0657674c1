"""Domains that are removed from disk, while others write and read there."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_store.block_files import BlockFiles
from cache_store.block_seal import BlockSeal
from cache_store.errors import NotStoredError, StorageError
from tests.support.block_folders import ONE, OTHER, SIZE, TWO, block, read, stored
from tests.support.block_names import make_name


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
