"""Blocks as files: the bytes of the disk tier, one file a block, one folder and one key a domain.

Knows no slots, tenants or quotas: what is kept, and for whom, is decided above. Keys and the list of files live in this
object only, so that nothing outlives it: a crash leaves sealed bytes that nobody can open, and whoever starts next
removes the folder. For the same reason nothing is synced. Files are not overwritten before they are unlinked: file
systems and SSDs do not promise to write in place. What makes bytes unreadable is that their domain's key is gone.

Safe on several threads. Reads wait for reads, writes for writes, neither for the other nor for removals; only where
there is no room, a write waits for the files of removed domains to be unlinked.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import structlog

from cache_store import file_io
from cache_store.block_name import BlockName
from cache_store.block_seal import TAG_BYTES, BlockSeal, Buffer, head_bytes
from cache_store.errors import CorruptDataError, NotStoredError, StorageError

SWEEP_TIMEOUT_S = 2.0
"""A write waits that long for room that a removed domain's files still take."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _DomainFiles:
    folder: Path
    seal: BlockSeal = field(default_factory=BlockSeal)
    files: dict[BlockName, int] = field(default_factory=dict)
    """Numbers of the files that can be read."""
    changing: set[BlockName] = field(default_factory=set)
    """Their files are being written or unlinked."""

    def path(self, number: int) -> Path:
        return self.folder / str(number)


class BlockFiles:
    """Up to `max_blocks` blocks of `block_bytes` bytes each, in `folder`, which it makes and finally removes."""

    def __init__(self, folder: Path, block_bytes: int, max_blocks: int) -> None:
        """Raises PreconditionError where the folder has content, OSError where it cannot be used."""
        if block_bytes < 1 or max_blocks < 1:
            raise ValueError(f"{max_blocks} blocks of {block_bytes} bytes: both must be at least 1")
        self._folder = folder
        self._incoming = folder / "incoming"
        file_io.make_private_folder(folder)
        file_io.make_private_folder(self._incoming)
        self._block_bytes = block_bytes
        self._max_blocks = max_blocks
        self._lock = threading.Lock()
        """Of what follows, down to the blank line."""
        self._domains: dict[bytes, _DomainFiles] = {}
        self._num_files = 0
        self._numbers: Iterator[int] = count()
        self._is_closed = False
        self._num_sweeps = 0
        """Removals of domains whose files are still being unlinked."""
        self._sweep_error: BaseException | None = None
        self._unlinked = threading.Condition(self._lock)

        self._sweeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="block-files-sweeper")
        self._write_lock = threading.Lock()
        self._sealed_out = bytearray(block_bytes + TAG_BYTES)
        self._read_lock = threading.Lock()
        self._sealed_in = bytearray(block_bytes + TAG_BYTES)

    @property
    def num_files(self) -> int:
        """Files that take room: of blocks that can be read, that are being written, and that are not yet unlinked."""
        return self._num_files

    def write(self, name: BlockName, data: bytes | Buffer) -> None:
        """Keeps a block under `name`, in place of what is there.

        Raises StorageError where it is not kept: no room, a full disk, its domain removed meanwhile. Then nothing is
        there under this name.
        """
        if len(data) != self._block_bytes:
            raise ValueError(f"a block has {self._block_bytes} bytes, not {len(data)}")
        with self._write_lock:
            self.remove(name)
            try:
                self._write(name, data)
            except OSError as error:
                raise StorageError(f"a block cannot be written to disk: {error.strerror}") from error

    def read_into(self, name: BlockName, target: Buffer) -> None:
        """Fills `target`, of `block_bytes` bytes.

        Raises NotStoredError where there is no such block, CorruptDataError where its file holds anything else; the
        file is gone then, and `target` may hold anything.
        """
        if len(target) != self._block_bytes:
            raise ValueError(f"a block has {self._block_bytes} bytes, not {len(target)}")
        domain, number = self._find(name)
        try:
            with self._read_lock:
                head = bytearray(head_bytes(name, self._block_bytes))
                file_io.read(domain.path(number), (head, self._sealed_in))
                domain.seal.open(name, head, self._sealed_in, target)
        except FileNotFoundError:
            self._forget(domain, name, number)
            raise NotStoredError("a block has gone from disk") from None
        except OSError as error:
            self._forget(domain, name, number)
            raise CorruptDataError(f"a block cannot be read from disk: {error.strerror}") from error
        except CorruptDataError:
            self._forget(domain, name, number)
            raise

    def prefetch(self, names: Sequence[BlockName]) -> None:
        """Has the system fetch blocks that will be read soon. Those that are not there are passed over."""
        for name in names:
            with contextlib.suppress(NotStoredError, OSError):  # their reads will tell
                domain, number = self._find(name)
                file_io.prefetch(domain.path(number))

    def remove(self, name: BlockName) -> None:
        """Removes a block; nothing where it is not there. With the last one of a domain goes its key."""
        with contextlib.suppress(NotStoredError):
            domain, number = self._find(name)
            self._forget(domain, name, number)

    def remove_domains(self, roots: Iterable[bytes]) -> None:
        """Makes all blocks of these domains unreadable, at once and for good. Files are unlinked in the background."""
        with self._lock:
            domains = [domain for domain in (self._domains.pop(root, None) for root in roots) if domain is not None]
            if not domains:
                return
            swept = [(domain.folder, domain.files.values()) for domain in domains]
            for domain in domains:
                domain.files = {}
            self._num_sweeps += 1
            self._sweeper.submit(self._sweep_all, swept)

    def wait_swept(self, timeout_s: float) -> bool:
        """Waits until the files of removed domains are unlinked; False where the time was too short."""
        with self._lock:
            return self._unlinked.wait_for(lambda: not self._num_sweeps, timeout_s)

    def close(self) -> None:
        """Forgets all keys and removes the folder. Idempotent. Raises OSError where something stays."""
        with self._write_lock:
            with self._lock:
                was_closed, self._is_closed = self._is_closed, True
                self._domains.clear()
            self._sweeper.shutdown(cancel_futures=True)
            if not was_closed and self._folder.exists():
                shutil.rmtree(self._folder)

    def check_invariants(self) -> None:
        """The list of files and the folders agree. To be called while nothing else is."""
        with self._lock:
            domains = tuple(self._domains.values())
            assert not any(domain.changing for domain in domains)
            assert all(domain.files for domain in domains)
            listed = {domain.path(number) for domain in domains for number in domain.files.values()}
            assert {path for domain in domains for path in domain.folder.iterdir()} == listed
            assert not list(self._incoming.iterdir())
            assert len(listed) <= self._num_files <= self._max_blocks
            assert self._num_sweeps or len(listed) == self._num_files

    @property
    def _has_room(self) -> bool:
        return self._num_files < self._max_blocks

    def _find(self, name: BlockName) -> tuple[_DomainFiles, int]:
        with self._lock:
            domain = self._domains.get(name.root)
            number = domain.files.get(name) if domain else None
            if domain is None or number is None:
                raise NotStoredError("there is no such block on disk")
            return domain, number

    def _write(self, name: BlockName, data: bytes | Buffer) -> None:
        domain = self._reserve(name)
        number = next(self._numbers)
        incoming = self._incoming / str(number)
        try:
            head = domain.seal.seal(name, data, self._sealed_out)
            for folder in (self._folder, self._incoming):  # somebody may have removed it
                folder.mkdir(mode=file_io.FOLDER_MODE, exist_ok=True)
            file_io.write(incoming, (head, self._sealed_out))
            self._admit(domain, name, number, incoming)
        except BaseException:
            self._give_back(domain, name, incoming)
            raise

    def _reserve(self, name: BlockName) -> _DomainFiles:
        """Takes the room of a file and the name in its domain."""
        with self._lock:
            self._unlinked.wait_for(lambda: self._has_room or not self._num_sweeps, SWEEP_TIMEOUT_S)
            if self._is_closed:
                raise StorageError("the disk tier is closed")
            if self._sweep_error is not None:
                raise self._sweep_error
            if not self._has_room:
                raise StorageError(f"all {self._max_blocks} blocks of the disk tier are taken")
            domain = self._domains.get(name.root)
            if domain is None:
                domain = _DomainFiles(self._folder / str(next(self._numbers)))
                self._domains[name.root] = domain
            domain.changing.add(name)
            self._num_files += 1
            return domain

    def _admit(self, domain: _DomainFiles, name: BlockName, number: int, incoming: Path) -> None:
        with self._lock:
            if self._domains.get(name.root) is not domain:
                raise StorageError("the domain of a block was removed while it was written")
            domain.folder.mkdir(mode=file_io.FOLDER_MODE, exist_ok=True)
            incoming.rename(domain.path(number))
            domain.changing.remove(name)
            domain.files[name] = number

    def _forget(self, domain: _DomainFiles, name: BlockName, number: int) -> None:
        with self._lock:
            if domain.files.get(name) != number:
                return  # another thread was faster
            del domain.files[name]
            domain.changing.add(name)
        self._give_back(domain, name, domain.path(number))

    def _give_back(self, domain: _DomainFiles, name: BlockName, path: Path) -> None:
        """Unlinks the file of a name that is changing; with the last name goes the domain."""
        self._unlink(path)
        with self._lock:
            domain.changing.remove(name)
            if not domain.files and not domain.changing and self._domains.get(name.root) is domain:
                del self._domains[name.root]
                _remove_folder(domain.folder)

    def _sweep_all(self, swept: Iterable[tuple[Path, Iterable[int]]]) -> None:
        """Knows the files only: the keys must not wait for them."""
        try:
            for folder, numbers in swept:
                self._sweep(folder, numbers)
        except BaseException as error:  # whoever writes next is told
            self._sweep_error = error
            raise
        finally:
            with self._lock:
                self._num_sweeps -= 1
                self._unlinked.notify_all()

    def _sweep(self, folder: Path, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self._is_closed:
                return  # all is removed at once
            self._unlink(folder / str(number))
        _remove_folder(folder)

    def _unlink(self, path: Path) -> None:
        """A file that stays keeps its room."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("disk_file_stays", reason=error.strerror)
            return
        with self._lock:
            self._num_files -= 1
            self._unlinked.notify_all()


def _remove_folder(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return  # nothing was written to it
    except OSError as error:  # holds a file that stays, or one that another thread is about to unlink
        _log.info("disk_folder_stays", reason=error.strerror)
