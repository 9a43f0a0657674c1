"""What is written to disk comes back as it was, to who names it; others neither find nor read it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.block_files import BlockFiles
from cache_store.block_name import BlockName
from cache_store.errors import NotStoredError, PreconditionError, StorageError
from cache_store.tokens import PackedTokens
from tests.support.block_folders import ONE, OTHER, SIZE, TWO, block, only_file, read, stored
from tests.support.block_names import make_name


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


def test_a_block_of_another_size_is_an_error_of_the_caller(files: BlockFiles) -> None:
    with pytest.raises(ValueError, match="256 bytes, not 255"):
        files.write(ONE, bytes(SIZE - 1))
    with pytest.raises(ValueError, match="256 bytes, not 257"):
        files.read_into(ONE, bytearray(SIZE + 1))


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


def test_what_is_expected_soon_can_be_told(files: BlockFiles) -> None:
    files.write(ONE, block(1))
    files.prefetch((ONE, TWO))
    assert read(files, ONE) == block(1)
