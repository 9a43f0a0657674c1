"""Whole files in folders of our own, written and read without buffers in between. Knows nothing of what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cache_store.errors import CorruptDataError, PreconditionError

FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW

Part = bytes | bytearray | memoryview


def make_private_folder(folder: Path) -> None:
    """Makes an empty folder that is its owner's only. Raises PreconditionError where it has content, or OSError."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise PreconditionError(f"the folder {folder} is not empty; name an empty or a new one")
    folder.chmod(FOLDER_MODE)


def write(path: Path, parts: Sequence[Part]) -> None:
    """Makes a new file of `parts`. Raises OSError; then a part of it may be there."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(descriptor, rest) :]


def read(path: Path, parts: Sequence[bytearray | memoryview]) -> None:
    """Fills `parts` with a file of exactly their length. Raises CorruptDataError for another length, or OSError."""
    with _opened(path, os.O_RDONLY) as descriptor:
        if os.fstat(descriptor).st_size != sum(len(part) for part in parts):
            raise CorruptDataError("a stored file has another length than was written")
        for part in parts:
            rest = memoryview(part)
            while rest:
                num_bytes = os.readv(descriptor, [rest])
                if not num_bytes:
                    raise CorruptDataError("a stored file was cut while it was read")
                rest = rest[num_bytes:]


def prefetch(path: Path) -> None:
    """Has the system fetch a file that will be read soon. Raises OSError."""
    with _opened(path, os.O_RDONLY) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | _SAFE, _FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
