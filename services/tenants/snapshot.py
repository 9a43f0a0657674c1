"""A router's own copy of the control data on disk, from which a lost or rolled-back store is repaired.

One file per router, mode 0600, under a MAC, replaced atomically. Blocking; callers on an event loop use a thread.
"""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

from cache_store.errors import CorruptDataError, PreconditionError, VersionError
from services.tenants.document import DocumentKind, Sealer, document_key, read_document, write_document
from services.tenants.master_key import MasterKey
from services.tenants.state import EMPTY_STATE, ControlState


class SnapshotFile:
    """The file at `path`. Owned by one router."""

    def __init__(self, path: Path, master: MasterKey) -> None:
        self._path = path
        self._master = master
        self._sealer = Sealer(master)
        self._saving = threading.Lock()
        self._saved_generation = 0
        self.is_current = True
        """Whether what was loaded is under the key that is in use, not the other one."""

    @property
    def path(self) -> Path:
        """Where it is, or will be after the first save."""
        return self._path

    def load(self) -> ControlState:
        """What was saved last; the empty state where nothing was.

        Raises CorruptDataError for a wrong MAC, PreconditionError for another master key, VersionError for another
        schema: a router does not start over such a file, since starting without it could revive what it had ended.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return EMPTY_STATE
        what = f"the snapshot {self._path}"
        advice = "; if the store is known to be whole, move the file away"
        try:
            state = read_document(DocumentKind.SNAPSHOT, data, self._master, what)
        except CorruptDataError as error:
            raise CorruptDataError(f"{error}{advice}") from error
        except PreconditionError as error:
            raise PreconditionError(f"{error}{advice}") from error
        except VersionError as error:
            raise VersionError(what, error.found, error.expected) from error
        self.is_current = document_key(data) == self._master.key_id
        return state

    def save(self, state: ControlState) -> None:
        """Replaces the file; on disk when this returns. Raises OSError, and the old file stays then.

        A state older than the one saved last is dropped: a save goes on in its thread when its caller is cancelled, and
        must not come after a newer one.
        """
        with self._saving:
            if state.generation < self._saved_generation:
                return
            self._replace(write_document(DocumentKind.SNAPSHOT, state, self._sealer))
            self._saved_generation = state.generation

    def _replace(self, data: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            self._write(temporary, data)
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._sync_folder()

    def _write(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _sync_folder(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
