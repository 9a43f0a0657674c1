"""Where one start of a worker keeps its blocks on disk: `<folder>/<worker id>/start-<random>`, for itself alone.

A lock on the worker's folder belongs to the open file of its process and ends with it, however that ends. What an
earlier start left there is sealed under keys that nobody has any more; it is removed. A folder that holds anything else
is not ours: it is refused.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from pathlib import Path

import structlog

from cache_store.errors import PreconditionError
from cache_store.registry import WorkerId

_LOCK_NAME = "lock"
_START = "start-"

_log = structlog.get_logger(__name__)


class DiskFolder:
    """Holds the lock until `release`."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        """Does not exist yet."""
        self._lock_fd = lock_fd

    @classmethod
    def take(cls, folder: Path, worker_id: WorkerId) -> DiskFolder:
        """Raises PreconditionError where another process has the worker's folder, or where it cannot be used."""
        own = folder.expanduser().absolute() / worker_id
        try:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_own(own)
            own.chmod(0o700)
            lock_fd = os.open(own / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise PreconditionError(
                f"{own} cannot be used for blocks on disk ({error.strerror}); take a folder that you own: --disk-folder"
            ) from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            raise PreconditionError(
                f"another process keeps blocks of {worker_id} in {own}; stop it, or name another folder (--disk-folder)"
            ) from None
        try:
            _remove_leftovers(own)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(own / f"{_START}{secrets.token_hex(8)}", lock_fd)

    def release(self) -> None:
        """Removes what is left of this start, and gives the lock back. Idempotent."""
        if self._lock_fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = -1


def _check_own(own: Path) -> None:
    """Raises PreconditionError where the folder is not ours, or holds what no start of a worker left there."""
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PreconditionError(f"{own} is a link, or somebody else's; take a folder that you own: --disk-folder")
    for path in own.iterdir():
        if path.name != _LOCK_NAME and not path.name.startswith(_START):
            raise PreconditionError(
                f"{own} holds {path.name}, which is nothing of ours; take another folder: --disk-folder"
            )


def _remove_leftovers(own: Path) -> None:
    leftovers = [path for path in own.iterdir() if path.name.startswith(_START)]
    for path in leftovers:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise PreconditionError(
                f"{path} is a leftover of an earlier start and cannot be removed: {error}"
            ) from error
    if leftovers:
        _log.info("disk_leftovers_removed", num_starts=len(leftovers))
